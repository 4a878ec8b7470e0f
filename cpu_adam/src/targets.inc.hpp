// The instruction sets that have a kernel. Include this file before any of Highway's headers.
// Excluded: sets without fused multiply-add (SSE, and Highway's own scalar set, whose MulAdd rounds
// twice); SVE, whose vectors have no constant size and cannot be array elements (such processors
// also have NEON); sets that no test of this project runs (Power, RISC-V, WebAssembly). These have
// only the scalar kernel. Without an include guard, on purpose: the vector kernels include
// themselves.

// clang-format off
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_AVX2 | HWY_AVX3 | HWY_NEON | HWY_SCALAR | HWY_EMU128))
// clang-format on
