// The AVX-512 set (F, BW and VL): registers of 16 float32 and what the kernels do with them.
//
// AVX512-BF16's own conversion is not used: it flushes denormals, and every set must round to the same bits.
// Only for files that CMake compiles with those options.
#pragma once

#include <immintrin.h>

#include "floats.hpp"

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

  // For the forward pass.
  static constexpr int kRegsPerRow = 4;
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg divide(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg round(Reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // 2^n of an integral n in -126..127.
  static Reg power_of_two(Reg n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
  }
  // `value` where x >= bound, else 0.
  static Reg keep_from(Reg value, Reg x, Reg bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), value);
  }
  static bool any_equal(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0; }
  static void load_pair(const float* from, Reg* low, Reg* high) {
    *low = load(from);
    *high = load(from + kLanes);
  }
  // Word i holds elements i and i + kLanes: one load and two cheap operations give both registers.
  static void load_pair(const Bfloat16* from, Reg* low, Reg* high) {
    const __m512i words = _mm512_loadu_si512(from);
    *low = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    *high = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

}  // namespace
}  // namespace fastverify
