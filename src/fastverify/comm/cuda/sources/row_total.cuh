// A value per thread combined over all threads of a cluster, which holds one row: a sum of squares, a largest value.
//
// Each warp puts its part into the memory of every block of the cluster, and every thread combines all parts in the same
// order, so all hold the same bits. `offer` and `total` are apart: what needs no total belongs between them.
//
// Rounds alternate between two sets of parts. A block that offers in round r + 2 has the total of round r + 1, so every
// warp of the cluster has offered in round r + 1, and had read its parts of round r before. For a cluster of several
// blocks a mailbox per set counts the bytes that have come. A block ends only after its last total, so nobody puts
// anything into a block that has ended.

#pragma once

#include "ptx.cuh"

constexpr u32 WARP = 32;
constexpr u32 MAX_WARPS = 32;

// Ways to combine values of which none is negative, so 0 changes nothing.
struct Largest {
  __device__ static __forceinline__ float combine(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
  __device__ static __forceinline__ float combine(float a, float b) { return a + b; }
};

template <class Kind>
__device__ __forceinline__ float combine_over_warp(float value) {
#pragma unroll
  for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
    value = Kind::combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

struct RowParts {
  float parts[2][CLUSTER * MAX_WARPS];
  u64 mailboxes[2];
};

struct RowTotal {
  RowParts& memory;
  u32 block;  // of the cluster
  u32 round;

  // Before anything else; what lies between this and `meet` hides the wait for the other blocks.
  __device__ __forceinline__ void open() {
#if FV_CLUSTER > 1
    if (threadIdx.x == 0) {
      open_mailbox(&memory.mailboxes[0]);
      open_mailbox(&memory.mailboxes[1]);
      publish_mailboxes();
    }
    cluster_arrive();
#endif
  }

  // The other blocks of the cluster run, so they may be offered something.
  __device__ __forceinline__ void meet() {
#if FV_CLUSTER > 1
    cluster_wait();
#endif
  }

  template <class Kind>
  __device__ __forceinline__ void offer(float value) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, num_warps = blockDim.x / WARP, set = round % 2;
    value = combine_over_warp<Kind>(value);
    float* place = &memory.parts[set][block * num_warps + warp];
#if FV_CLUSTER > 1
    if (threadIdx.x == 0) expect_bytes(&memory.mailboxes[set], CLUSTER * num_warps * sizeof(float));
    if (lane < CLUSTER) put_into_block(place, &memory.mailboxes[set], lane, value);
#else
    if (lane == 0) *place = value;
#endif
  }

  template <class Kind>
  __device__ __forceinline__ float total() {
    const u32 lane = threadIdx.x % WARP, num_parts = CLUSTER * (blockDim.x / WARP), set = round % 2;
#if FV_CLUSTER > 1
    await_bytes(&memory.mailboxes[set], round / 2 % 2);
#else
    __syncthreads();
#endif
    ++round;
    float value = lane < num_parts ? memory.parts[set][lane] : 0.0f;
    if (CLUSTER > 1) {
#pragma unroll 1
      for (u32 i = lane + WARP; i < num_parts; i += WARP) value = Kind::combine(value, memory.parts[set][i]);
    }
    return combine_over_warp<Kind>(value);
  }
};
