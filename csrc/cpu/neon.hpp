// The NEON set of 64-bit Arm: registers of 4 float32 and what the kernels do with them.
#pragma once

#include <arm_neon.h>

#include "floats.hpp"

namespace fastverify {
namespace {

struct Neon {
  static constexpr size_t kLanes = 4;
  using Reg = float32x4_t;

  static Reg load(const float* from) { return vld1q_f32(from); }
  static Reg load(const Bfloat16* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&from->bits), 16));
  }
  static Reg load(const Float16* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits))); }

  static void store(float* to, Reg value) { vst1q_f32(to, value); }
  static void store(Bfloat16* to, Reg value) {
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet_nan = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t is_number = vceqq_f32(value, value);
    vst1_u16(&to->bits, vshrn_n_u32(vbslq_u32(is_number, rounded, quiet_nan), 16));
  }
  static void store(Float16* to, Reg value) { vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(value))); }

  static Reg add(Reg a, Reg b) { return vaddq_f32(a, b); }
  static Reg multiply(Reg a, Reg b) { return vmulq_f32(a, b); }
  static Reg broadcast(float value) { return vdupq_n_f32(value); }
  static Reg zero() { return vdupq_n_f32(0.0f); }
  static float sum_lanes(Reg value) { return vaddvq_f32(value); }

  // For the forward pass.
  static constexpr int kRegsPerRow = 4;
  static Reg fma(Reg a, Reg b, Reg c) { return vfmaq_f32(c, a, b); }
  static Reg divide(Reg a, Reg b) { return vdivq_f32(a, b); }
  static Reg max(Reg a, Reg b) { return vmaxq_f32(a, b); }
  static Reg min(Reg a, Reg b) { return vminq_f32(a, b); }
  static Reg round(Reg a) { return vrndnq_f32(a); }
  // 2^n of an integral n in -126..127.
  static Reg power_of_two(Reg n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  // `value` where x >= bound, else 0.
  static Reg keep_from(Reg value, Reg x, Reg bound) {
    return vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, bound), vreinterpretq_u32_f32(value)));
  }
  static bool any_equal(Reg a, Reg b) { return vmaxvq_u32(vceqq_f32(a, b)) != 0; }
  static void load_pair(const float* from, Reg* low, Reg* high) {
    *low = load(from);
    *high = load(from + kLanes);
  }
  // Word i holds elements i and i + kLanes: one load and two cheap operations give both registers.
  static void load_pair(const Bfloat16* from, Reg* low, Reg* high) {
    const uint32x4_t words = vreinterpretq_u32_u16(vld1q_u16(&from->bits));
    *low = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
    *high = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)));
  }
};

}  // namespace
}  // namespace fastverify
