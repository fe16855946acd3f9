// The forward pass on x86 with AVX-512 F, BW and VL. CMake compiles this file with those options.
#include "forward_impl.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "avx512.hpp"

namespace fastverify {
namespace {

constexpr ForwardKernels kForward = make_forward_kernels<Avx512>("avx512");

}  // namespace

const ForwardKernels* avx512_forward_kernels() {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl");
  return runs ? &kForward : nullptr;
}

}  // namespace fastverify
#else
const fastverify::ForwardKernels* fastverify::avx512_forward_kernels() { return nullptr; }
#endif
