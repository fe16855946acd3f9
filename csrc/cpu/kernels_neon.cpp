// 64-bit Arm, whose baseline has NEON and the half-precision conversions.
#include "kernels_impl.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

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
};

constexpr Kernels kNeon = make_kernels<Neon>("neon");

}  // namespace

const Kernels* neon_kernels() { return &kNeon; }

}  // namespace fastverify
#else
const fastverify::Kernels* fastverify::neon_kernels() { return nullptr; }
#endif
