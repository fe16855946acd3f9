// Units: what one thread moves at a time, 8 or 16 bytes of a message, and sums of them in float32.
//
// Limits: pointers aligned to 16 bytes, message sizes to elements. The last unit of a message may be cut short.

#pragma once

#include "call.cuh"

#define FV_FLOAT32 0
#define FV_BFLOAT16 1
#define FV_FLOAT16 2

constexpr int ELEMENTS_PER_WORD = FV_DTYPE == FV_FLOAT32 ? 1 : 2;

template <int WORDS>
struct Unit {
  u32 words[WORDS];
};

// The last unit of a message, byte by byte. Apart from the others, since code that is not run still has to be fetched.
template <int WORDS>
__device__ __noinline__ Unit<WORDS> load_tail(u64 address, u64 num_bytes) {
  Unit<WORDS> unit;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    unit.words[w] = 0;
#pragma unroll
    for (u32 b = 0; b < 4; ++b) {
      if (4 * w + b < num_bytes) unit.words[w] |= static_cast<u32>(reinterpret_cast<const u8*>(address)[4 * w + b]) << (8 * b);
    }
  }
  return unit;
}

template <int WORDS>
__device__ __noinline__ void store_tail(u64 address, u64 num_bytes, Unit<WORDS> unit) {
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
#pragma unroll
    for (u32 b = 0; b < 4; ++b) {
      if (4 * w + b < num_bytes) reinterpret_cast<u8*>(address)[4 * w + b] = static_cast<u8>(unit.words[w] >> (8 * b));
    }
  }
}

template <int WORDS>
__device__ __forceinline__ Unit<WORDS> load_unit(u64 base, u64 index, u64 num_bytes) {
  const u64 start = index * (4 * WORDS);
  if (start + 4 * WORDS > num_bytes) return load_tail<WORDS>(base + start, num_bytes - start);
  Unit<WORDS> unit;
  if constexpr (WORDS == 4) {
    const uint4 value = *reinterpret_cast<const uint4*>(base + start);
    unit.words[0] = value.x, unit.words[1] = value.y, unit.words[2] = value.z, unit.words[3] = value.w;
  } else {
    const uint2 value = *reinterpret_cast<const uint2*>(base + start);
    unit.words[0] = value.x, unit.words[1] = value.y;
  }
  return unit;
}

template <int WORDS>
__device__ __forceinline__ void store_unit(u64 base, u64 index, u64 num_bytes, const Unit<WORDS>& unit) {
  const u64 start = index * (4 * WORDS);
  if (start + 4 * WORDS > num_bytes) {
    store_tail(base + start, num_bytes - start, unit);
  } else if constexpr (WORDS == 4) {
    *reinterpret_cast<uint4*>(base + start) = make_uint4(unit.words[0], unit.words[1], unit.words[2], unit.words[3]);
  } else {
    *reinterpret_cast<uint2*>(base + start) = make_uint2(unit.words[0], unit.words[1]);
  }
}

__device__ __forceinline__ void unpack(u32 word, float (&values)[ELEMENTS_PER_WORD]) {
#if FV_DTYPE == FV_FLOAT32
  values[0] = __uint_as_float(word);
#elif FV_DTYPE == FV_BFLOAT16
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000u);
#else
  values[0] = widen_fp16(static_cast<u16>(word));
  values[1] = widen_fp16(static_cast<u16>(word >> 16));
#endif
}

__device__ __forceinline__ u32 pack(const float (&values)[ELEMENTS_PER_WORD]) {
#if FV_DTYPE == FV_FLOAT32
  return __float_as_uint(values[0]);
#elif FV_DTYPE == FV_BFLOAT16
  return round_to_bf16x2(values[0], values[1]);
#else
  return round_to_fp16x2(values[0], values[1]);
#endif
}

template <int WORDS>
struct Sums {
  float values[WORDS][ELEMENTS_PER_WORD];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
#pragma unroll
      for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[w][e] = 0.0f;
  }

  __device__ __forceinline__ void set(const Unit<WORDS>& unit) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) unpack(unit.words[w], values[w]);
  }

  __device__ __forceinline__ void add(const Unit<WORDS>& unit) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      float terms[ELEMENTS_PER_WORD];
      unpack(unit.words[w], terms);
#pragma unroll
      for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[w][e] += terms[e];
    }
  }

  __device__ __forceinline__ Unit<WORDS> round() const {
    Unit<WORDS> unit;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) unit.words[w] = pack(values[w]);
    return unit;
  }

  // Unrounded: one unit of float32 per element of a word.
  __device__ __forceinline__ Unit<WORDS> floats(int element) const {
    Unit<WORDS> unit;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) unit.words[w] = __float_as_uint(values[w][element]);
    return unit;
  }

  __device__ __forceinline__ void add_floats(int element, const Unit<WORDS>& unit) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) values[w][element] += __uint_as_float(unit.words[w]);
  }
};
