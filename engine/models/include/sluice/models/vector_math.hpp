#pragma once
// Makes LibTorch's vector functions (exp, log) give equal bits in every process.

namespace sluice::models {

// Makes the first call of oneMKL's vector functions. Call it before two threads compute with
// LibTorch. The first call chooses kernels by the processor, and for a moment stores the number of
// another processor's kernels. A second thread that calls at that moment computes once with those,
// and the last digit of an exp differs from run to run (docs/decisions/0003-same-bits.md). Takes
// microseconds; further calls do nothing. Thread-safe.
void settle_vector_math();

}  // namespace sluice::models
