// The instructions that CUDA C++ has no name for, one function each. Nothing here knows inboxes or epochs.
// tests/comm/cuda/emulator has the same functions for a CPU, so that the kernels can be run without a GPU.
//
// Source: PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- memory: volatile accesses are relaxed at system scope ----

__device__ __forceinline__ uint4 load_line(const u8* address) {
  uint4 line;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(line.x), "=r"(line.y), "=r"(line.z), "=r"(line.w)
               : "l"(address)
               : "memory");
  return line;
}

__device__ __forceinline__ void store_line(u8* address, uint4 line) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(line.x), "r"(line.y), "r"(line.z),
               "r"(line.w)
               : "memory");
}

__device__ __forceinline__ void store_release(u64 address, u32 word) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}

__device__ __forceinline__ u32 load_acquire(u64 address) {
  u32 word;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}

// ---- launches ----

// The next kernel of the stream may take its place on the GPU now; it does nothing before this one has ended.
__device__ __forceinline__ void overlap_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- conversions; the first value is the lower half ----

__device__ __forceinline__ float widen_fp16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ u32 round_to_bf16x2(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ u32 round_to_fp16x2(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// ---- clusters of FV_CLUSTER blocks; one block is a cluster of its own before SM90 ----

constexpr int CLUSTER = FV_CLUSTER;

#if FV_CLUSTER > 1
#define FV_CLUSTER_DIMS __cluster_dims__(FV_CLUSTER, 1, 1)
#else
#define FV_CLUSTER_DIMS
#endif

__device__ __forceinline__ void cluster_arrive() {
#if FV_CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if FV_CLUSTER > 1
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Puts `value` into the same place of the shared memory of block `block` of the cluster.
__device__ __forceinline__ void put_into_block(float* place, u32 block, float value) {
#if FV_CLUSTER > 1
  const u32 local = static_cast<u32>(__cvta_generic_to_shared(place));
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
#else
  *place = value;
#endif
}
