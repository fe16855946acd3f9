// The functions of sources/ptx.cuh on the emulated machine.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

inline uint4 load_line(const u8* address) {
  uint4 line;
  emulator::load(reinterpret_cast<u64>(address), &line, sizeof line);
  return line;
}

inline void store_line(u8* address, uint4 line) { emulator::store(reinterpret_cast<u64>(address), &line, sizeof line); }

inline void store_release(u64 address, u32 word) { emulator::store_release(address, word); }

inline u32 load_acquire(u64 address) {
  u32 word;
  emulator::load(address, &word, sizeof word);
  return word;
}

inline void overlap_launches() {
  emulator::wait_for_grid_before();
  emulator::allow_grid_after();
}

// ---- conversions: to nearest, ties to even, as the instructions do ----

inline float widen_fp16(u16 bits) {
  const u32 sign = static_cast<u32>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

inline u32 round_to_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  if (value != value) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

inline u32 round_to_fp16(float value) {
  const u32 sign = __float_as_uint(value) >> 16 & 0x8000u;
  const float magnitude = std::fabs(value);
  if (value != value) return 0x7fffu;
  if (magnitude >= 65520.0f) return sign | 0x7c00u;
  if (magnitude < 0x1p-14f) return sign | static_cast<u32>(std::nearbyint(magnitude * 0x1p24f));
  const u32 bits = __float_as_uint(magnitude);
  return sign | ((bits + 0xfffu + (bits >> 13 & 1u)) >> 13) - (112u << 10);
}

inline u32 round_to_bf16x2(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }
inline u32 round_to_fp16x2(float low, float high) { return round_to_fp16(low) | round_to_fp16(high) << 16; }

// ---- clusters ----

constexpr int CLUSTER = FV_CLUSTER;
#define FV_CLUSTER_DIMS

inline void cluster_arrive() {
  if (CLUSTER > 1) emulator::cluster_arrive();
}

inline void cluster_wait() {
  if (CLUSTER > 1) {
    emulator::cluster_wait();
  } else {
    emulator::block_barrier();
  }
}

inline void put_into_block(float* place, u32 block, float value) {
  emulator::pause("put_into_block");
  *(CLUSTER > 1 ? static_cast<float*>(emulator::in_block(place, block)) : place) = value;
}
