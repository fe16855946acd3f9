// x86 with AVX-512 F, BW and VL (Intel Skylake-SP, AMD Zen 4 and later). CMake compiles this file with those options.
//
// AVX512-BF16's own conversion is not used: it flushes denormals, and every set must round to the same bits.
#include "kernels_impl.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace fastverify {
namespace {

struct Avx512 {
  static constexpr size_t kLanes = 16;
  using Reg = __m512;

  static Reg load(const float* from) { return _mm512_loadu_ps(from); }
  static Reg load(const Bfloat16* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static Reg load(const Float16* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  static void store(float* to, Reg value) { _mm512_storeu_ps(to, value); }
  static void store(Bfloat16* to, Reg value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static void store(Float16* to, Reg value) {
    const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }

  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg broadcast(float value) { return _mm512_set1_ps(value); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static float sum_lanes(Reg value) { return _mm512_reduce_add_ps(value); }

  static constexpr size_t kStreamBytes = 64;
  static void stream(char* aligned, const char* from) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(aligned), _mm512_loadu_si512(from));
  }
  static void stream_fence() { _mm_sfence(); }
};

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
