// The three element types and their conversions to and from float32, one element at a time.
//
// Rounding is to nearest, ties to even, denormals kept: the same bits as PyTorch and as the vector code.
// Everything sits in an unnamed namespace: each file that includes this is compiled with its own vector options, and
// one shared inline function could otherwise be linked in from the file with options this processor lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastverify {

enum class Dtype : uint8_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };
constexpr int kNumDtypes = 3;
constexpr size_t kItemBytes[kNumDtypes] = {4, 2, 2};

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
static_assert(sizeof(Bfloat16) == 2 && sizeof(Float16) == 2);

namespace {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(float value) { return value; }

inline float to_float(Bfloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Exact for normal and denormal halves alike: the exponent bias differs by 112.
  const float scaled = float_of(magnitude << 13) * float_of((127u + 112u) << 23);
  return float_of(sign | bits_of(scaled));
}

inline void from_float(float value, float* out) { *out = value; }

inline void from_float(float value, Bfloat16* out) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    out->bits = static_cast<uint16_t>((bits >> 16) | 0x40u);
  } else {
    out->bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

inline void from_float(float value, Float16* out) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, the first value that rounds to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds at the denormals' last bit, 2^-24
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

}  // namespace
}  // namespace fastverify
