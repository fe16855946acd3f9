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

inline void keep(u64&) {}

inline void await_launch_before() { emulator::wait_for_grid_before(); }

inline void allow_next_launch() { emulator::allow_grid_after(); }

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
  return sign | (((bits + 0xfffu + (bits >> 13 & 1u)) >> 13) - (112u << 10));
}

inline u32 round_to_bf16x2(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }
inline u32 round_to_fp16x2(float low, float high) { return round_to_fp16(low) | round_to_fp16(high) << 16; }

// The product of two bfloat16 or float16 numbers fits a float32, so one rounding follows it. Not so for tiny numbers.
inline u32 multiply_bf16x2(u32 a, u32 b) {
  return round_to_bf16x2(__uint_as_float(a << 16) * __uint_as_float(b << 16),
                         __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u));
}

inline u32 multiply_fp16x2(u32 a, u32 b) {
  return round_to_fp16x2(widen_fp16(static_cast<u16>(a)) * widen_fp16(static_cast<u16>(b)),
                         widen_fp16(static_cast<u16>(a >> 16)) * widen_fp16(static_cast<u16>(b >> 16)));
}

// 4 exponent and 3 fraction bits, no infinities; above 448 it stays 448.
inline u32 round_to_e4m3(float value) {
  const u32 sign = __float_as_uint(value) >> 24 & 0x80u;
  const float magnitude = std::fabs(value);
  if (value != value) return 0x7fu;
  if (magnitude >= 464.0f) return sign | 0x7eu;
  if (magnitude < 0x1p-6f) return sign | static_cast<u32>(std::nearbyint(magnitude * 0x1p9f));
  const u32 bits = __float_as_uint(magnitude);
  return sign | (((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3));
}

inline u16 round_to_e4m3x2(float low, float high) {
  return static_cast<u16>(round_to_e4m3(low) | round_to_e4m3(high) << 8);
}

inline float reciprocal(float value) { return 1.0f / value; }

// ---- clusters and their mailboxes ----

constexpr u32 CLUSTER = FV_CLUSTER;
#define FV_CLUSTER_DIMS

inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }

// A round is over when its one arrival and its bytes have come; bytes may come before they are expected.
struct Mailbox {
  int missing_bytes;
  u16 has_arrival;
  u16 rounds;

  void look() {
    if (has_arrival == 0 || missing_bytes != 0) return;
    has_arrival = 0;
    ++rounds;
  }
};
static_assert(sizeof(Mailbox) == sizeof(u64), "a mailbox is one word");

inline void open_mailbox(u64* mailbox) { *reinterpret_cast<Mailbox*>(mailbox) = Mailbox{0, 0, 0}; }
inline void publish_mailboxes() {}

inline void expect_bytes(u64* mailbox, u32 num_bytes) {
  emulator::pause("expect_bytes");
  Mailbox* own = reinterpret_cast<Mailbox*>(mailbox);
  own->missing_bytes += static_cast<int>(num_bytes);
  own->has_arrival = 1;
  own->look();
}

inline void put_into_block(float* place, u64* mailbox, u32 block, float value) {
  emulator::pause("put_into_block");
  *static_cast<float*>(emulator::in_block(place, block)) = value;
  Mailbox* other = static_cast<Mailbox*>(emulator::in_block(mailbox, block));
  other->missing_bytes -= sizeof value;
  other->look();
}

inline void await_bytes(u64* mailbox, u32 parity) {
  while (reinterpret_cast<Mailbox*>(mailbox)->rounds % 2 == parity) emulator::pause_in_vain("await_bytes");
}
