// The AVX2 and F16C set: registers of 8 float32 and what the kernels do with them.
//
// Only for files that CMake compiles with those options; fused multiply-add, which needs -mfma, is for the forward pass.
#pragma once

#include <immintrin.h>

#include "floats.hpp"

namespace fastverify {
namespace {

struct Avx2 {
  static constexpr size_t kLanes = 8;
  using Reg = __m256;

  static Reg load(const float* from) { return _mm256_loadu_ps(from); }
  static Reg load(const Bfloat16* from) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Reg load(const Float16* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  static void store(float* to, Reg value) { _mm256_storeu_ps(to, value); }
  static void store(Bfloat16* to, Reg value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet_nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256i chosen = _mm256_blendv_epi8(rounded, quiet_nan, _mm256_castps_si256(is_nan));
    const __m256i high = _mm256_srli_epi32(chosen, 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
  }
  static void store(Float16* to, Reg value) {
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }

  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg broadcast(float value) { return _mm256_set1_ps(value); }
  static Reg zero() { return _mm256_setzero_ps(); }
  static float sum_lanes(Reg value) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
  }

  // A whole cache line, so that no line is left half written between two pieces of work.
  static constexpr size_t kStreamBytes = 64;
  static void stream(char* aligned, const char* from) {
    for (size_t half = 0; half < kStreamBytes; half += sizeof(__m256i)) {
      const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(aligned + half), value);
    }
  }
  static void stream_fence() { _mm_sfence(); }

#if defined(__FMA__)
  // For the forward pass.
  static constexpr int kRegsPerRow = 2;
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg divide(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg round(Reg a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // 2^n of an integral n in -126..127.
  static Reg power_of_two(Reg n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  // `value` where x >= bound, else 0.
  static Reg keep_from(Reg value, Reg x, Reg bound) { return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ), value); }
  static bool any_equal(Reg a, Reg b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0; }
  static void load_pair(const float* from, Reg* low, Reg* high) {
    *low = load(from);
    *high = load(from + kLanes);
  }
  // Word i holds elements i and i + kLanes: one load and two cheap operations give both registers.
  static void load_pair(const Bfloat16* from, Reg* low, Reg* high) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    *low = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    *high = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
#endif
};

}  // namespace
}  // namespace fastverify
