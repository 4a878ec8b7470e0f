#pragma once
// Makes LibTorch's vector functions (exp, log) give the same bits in every process.

namespace sluice::models {

// To be called before two threads compute with LibTorch. oneMKL chooses the kernels of its vector
// functions by the processor at the first call, and what it keeps is for a moment the number of
// another processor's kernels: a second thread that calls then computes with those, once, and the
// last digit of an exp differs from run to run (docs/decisions/0003-same-bits.md). This makes that
// first call while one thread runs. Costs microseconds, again is harmless. Thread-safe.
void settle_vector_math();

}  // namespace sluice::models
