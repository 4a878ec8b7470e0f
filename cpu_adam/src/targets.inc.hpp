// Included before any of Highway's headers: the instruction sets that have a kernel. Left out are
// those without fused multiply-add (SSE, and Highway's own scalar one, whose MulAdd rounds twice),
// SVE, whose vectors have no size that an array of them could have (such processors have NEON too),
// and those never run by this project's tests (Power, RISC-V, WebAssembly): there the scalar kernel
// is the only one. Without an include guard, on purpose: the vector kernels include themselves.

// clang-format off
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (~(HWY_AVX2 | HWY_AVX3 | HWY_NEON | HWY_SCALAR | HWY_EMU128))
// clang-format on
