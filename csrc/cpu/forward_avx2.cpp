// The forward pass on x86 with AVX2, F16C and FMA. CMake compiles this file with those options.
#include "forward_impl.hpp"

#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#include "avx2.hpp"

namespace fastverify {
namespace {

constexpr ForwardKernels kForward = make_forward_kernels<Avx2>("avx2");

}  // namespace

const ForwardKernels* avx2_forward_kernels() {
  const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
  return runs ? &kForward : nullptr;
}

}  // namespace fastverify
#else
const fastverify::ForwardKernels* fastverify::avx2_forward_kernels() { return nullptr; }
#endif
