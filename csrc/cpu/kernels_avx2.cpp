// x86 with AVX2 and F16C (Intel Haswell, AMD Excavator and later). CMake compiles this file with -mavx2 -mf16c.
#include "kernels_impl.hpp"

#if defined(__AVX2__) && defined(__F16C__)
#include "avx2.hpp"

namespace fastverify {
namespace {

constexpr Kernels kAvx2 = make_kernels<Avx2>("avx2", stream_copy<Avx2>);

}  // namespace

const Kernels* avx2_kernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &kAvx2 : nullptr;
}

}  // namespace fastverify
#else
const fastverify::Kernels* fastverify::avx2_kernels() { return nullptr; }
#endif
