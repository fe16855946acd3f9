// All-reduce, residual and RMSNorm as in fused.cuh, with the norm as 8-bit floats (e4m3) and one float32 scale per row.
//
// scale = largest magnitude of the row / 448; quantised = norm / scale, rounded to nearest. The norm is that of the
// 16-bit kernel, rounded to its dtype. A row of zeros has scale 0. Needs SM89.

#include "fused.cuh"

constexpr float LARGEST_E4M3 = 448.0f;

template <int WORDS>
__device__ __forceinline__ float largest_magnitude(const Unit<WORDS>& unit) {
  float largest = 0.0f;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    float values[ELEMENTS_PER_WORD];
    unpack(unit.words[w], values);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) largest = fmaxf(largest, fabsf(values[e]));
  }
  return largest;
}

// One byte per value, in pairs.
template <int WORDS>
__device__ __forceinline__ void store_quantised(u64 base, u64 index, const Unit<WORDS>& unit, float factor) {
  constexpr int NUM_VALUES = WORDS * ELEMENTS_PER_WORD;
  float values[NUM_VALUES];
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    float pair[ELEMENTS_PER_WORD];
    unpack(unit.words[w], pair);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[w * ELEMENTS_PER_WORD + e] = pair[e] * factor;
  }
  u16 pairs[NUM_VALUES / 2];
#pragma unroll
  for (int i = 0; i < NUM_VALUES / 2; ++i) pairs[i] = round_to_e4m3x2(values[2 * i], values[2 * i + 1]);
  const u64 place = base + index * NUM_VALUES;
  if constexpr (NUM_VALUES == 8) {
    *reinterpret_cast<uint2*>(place) = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
  } else if constexpr (NUM_VALUES == 4) {
    *reinterpret_cast<u32*>(place) = pairs[0] | pairs[1] << 16;
  } else {
    *reinterpret_cast<u16*>(place) = pairs[0];
  }
}

struct StoreQuantised {
  template <int WORDS>
  __device__ static __forceinline__ void finish(const Call& call, const Span& span, u32 row, RowTotal& row_total,
                                                const Unit<WORDS> (&normed)[UNITS]) {
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      if (span.first + k * span.stride < span.end) largest = fmaxf(largest, largest_magnitude(normed[k]));
    }
    row_total.offer<Largest>(largest);
    largest = row_total.total<Largest>();
    const float factor = largest > 0.0f ? LARGEST_E4M3 / largest : 0.0f;
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      const u64 unit = span.first + k * span.stride;
      if (unit < span.end) store_quantised(call.quantised, unit, normed[k], factor);
    }
    const bool is_first_of_row = row_total.block == 0 && threadIdx.x == 0;
    if (is_first_of_row) reinterpret_cast<float*>(call.scale_out)[row] = largest / LARGEST_E4M3;
  }
};

#define FV_KERNEL(name, protocol, boxes)                                                          \
  extern "C" __global__ void FV_CLUSTER_DIMS __launch_bounds__(FV_MAX_THREADS, 1)                  \
      fastverify_fused_fp8_##name(const __grid_constant__ Call call) {                            \
    all_reduce_norm<protocol, boxes, StoreQuantised>(call);                                       \
  }

FV_KERNEL(lines, LineProtocol, Inboxes)
FV_KERNEL(sentinel, SentinelProtocol, Inboxes)
FV_KERNEL(outbox_lines, LineProtocol, Outboxes)
