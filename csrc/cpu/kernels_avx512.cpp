// x86 with AVX-512 F, BW and VL (Intel Skylake-SP, AMD Zen 4 and later). CMake compiles this file with those options.
#include "kernels_impl.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "avx512.hpp"

namespace fastverify {
namespace {

constexpr Kernels kAvx512 = make_kernels<Avx512>("avx512", stream_copy<Avx512>);

}  // namespace

const Kernels* avx512_kernels() {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl");
  return runs ? &kAvx512 : nullptr;
}

}  // namespace fastverify
#else
const fastverify::Kernels* fastverify::avx512_kernels() { return nullptr; }
#endif
