// The words of CUDA C++ that the kernels use, for a C++17 compiler.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct __align__(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }

// emulator.py turns a __shared__ variable into a reference to a place that it reserves in the memory of every block.
static inline emulator::u64 reserve_shared(emulator::u64 num_bytes) {
  static emulator::u64 reserved = 0;
  const emulator::u64 offset = (reserved + 15) / 16 * 16;
  reserved = offset + num_bytes;
  if (reserved > emulator::SHARED_BYTES) __builtin_trap();
  return offset;
}

template <class To, class From>
inline To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "bits are moved, not converted");
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float fabsf(float value) { return std::fabs(value); }
template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }

inline void __syncthreads() { emulator::block_barrier(); }
inline void __threadfence() { emulator::fence(); }
inline void __threadfence_system() { emulator::fence(); }
inline void __nanosleep(unsigned) { emulator::pause_in_vain("__nanosleep"); }
inline long long clock64() { return emulator::clock(); }

template <class T>
inline T __shfl_xor_sync(unsigned, T value, unsigned distance) {
  static_assert(sizeof(T) == 4, "one word per lane");
  const unsigned partner = (emulator::thread_index.x % 32) ^ distance;
  return same_bits<T>(emulator::exchange_in_warp(same_bits<std::uint32_t>(value), partner));
}

template <class T>
inline T __shfl_sync(unsigned, T value, unsigned lane) {
  return same_bits<T>(emulator::exchange_in_warp(same_bits<std::uint32_t>(value), lane));
}

inline void __syncwarp(unsigned = 0xffffffffu) { emulator::exchange_in_warp(0, 0); }

// Counters of one rank's own memory: at once, as its L2 does them.
template <class T>
inline T atomicAdd(T* word, T value) {
  emulator::pause("atomicAdd");
  const T before = *word;
  *word = before + value;
  return before;
}

template <class T>
inline T atomicExch(T* word, T value) {
  emulator::pause("atomicExch");
  const T before = *word;
  *word = value;
  return before;
}

template <class T>
inline T atomicCAS(T* word, T expected, T value) {
  emulator::pause("atomicCAS");
  const T before = *word;
  if (before == expected) *word = value;
  return before;
}
