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

// The compiler keeps the value in a register instead of working it out again where it is used.
__device__ __forceinline__ void keep(u64& value) { asm volatile("" : "+l"(value)); }

// ---- launches ----

// Before anything that the kernel before on the stream may have written: until then this one only takes its place.
__device__ __forceinline__ void await_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may take its place on the GPU now, while this one still runs.
__device__ __forceinline__ void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
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

// Both halves of a word by both halves of another, rounded once. For bfloat16 there is a multiply-add only before SM90,
// and adding minus zero changes nothing.
__device__ __forceinline__ u32 multiply_bf16x2(u32 a, u32 b) {
  u32 product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

__device__ __forceinline__ u32 multiply_fp16x2(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Two 8-bit floats of 4 exponent and 3 fraction bits; values beyond 448 become 448. The host asks for SM89.
__device__ __forceinline__ u16 round_to_e4m3x2(float low, float high) {
  u16 pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#else
  asm volatile("trap;");
#endif
  return pair;
}

// Within one unit in the last place.
__device__ __forceinline__ float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// ---- clusters of FV_CLUSTER blocks; one block is a cluster of its own before SM90 ----

constexpr u32 CLUSTER = FV_CLUSTER;

#if FV_CLUSTER > 1

#define FV_CLUSTER_DIMS __cluster_dims__(FV_CLUSTER, 1, 1)

// Publishes nothing but mailboxes (publish_mailboxes).
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// ---- mailboxes: words in shared memory that count the bytes which other blocks of the cluster put into it ----

__device__ __forceinline__ u32 shared_address(const void* place) { return static_cast<u32>(__cvta_generic_to_shared(place)); }

__device__ __forceinline__ void open_mailbox(u64* mailbox) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(mailbox)) : "memory");
}

// Other blocks of the cluster see this block's mailboxes after the next cluster barrier.
__device__ __forceinline__ void publish_mailboxes() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Once per round, by one thread; before or after the bytes come.
__device__ __forceinline__ void expect_bytes(u64* mailbox, u32 num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(mailbox)), "r"(num_bytes) : "memory");
}

// Puts `value` into the same place of block `block`, and tells the mailbox there.
__device__ __forceinline__ void put_into_block(float* place, u64* mailbox, u32 block, float value) {
  u32 remote_place, remote_mailbox;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_place) : "r"(shared_address(place)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_mailbox) : "r"(shared_address(mailbox)), "r"(block));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(remote_place), "f"(value),
               "r"(remote_mailbox)
               : "memory");
}

// Until the expected bytes of round number 0, 1, 2, ... have come; `parity` is that number modulo 2.
__device__ __forceinline__ void await_bytes(u64* mailbox, u32 parity) {
  u32 is_complete;
  do {
    asm volatile(
        "{ .reg .pred complete;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete; }"
        : "=r"(is_complete)
        : "r"(shared_address(mailbox)), "r"(parity)
        : "memory");
  } while (is_complete == 0);
}

#else
#define FV_CLUSTER_DIMS
#endif
