// What a link can do, measured by kernels: the time of one flag, and the rate of stores and of loads.
//
// fastverify_ping_pong: one thread per side. The starter writes the number of a round into the other side's memory, the other
// side answers into the starter's. Each side polls memory that only the peer writes. A round trip is two flights.
// fastverify_store_stream, fastverify_load_stream: every block goes over its part of one target again and again, 16 bytes per access.
// Never the copy engines: an all-reduce kernel does not use them either.
//
// Ordering: with `release` the store and the load pair as release and acquire at system scope, as flags after data do;
// without, a 16-byte line carries the number itself, as data does that says "I am here". Limits: addresses aligned to 16
// bytes, at most 8 targets and MAX_ROUNDS rounds; a side that hears nothing gives up after `spin_bound` clock cycles.

#include "ptx.cuh"

constexpr u32 MAX_ROUNDS = 4096;  // must match MAX_ROUNDS in link_gpus.py
constexpr u32 DONE = 1;           // must match link_gpus.py
constexpr u32 GAVE_UP = 2;

// Must match _PingCall in link_gpus.py.
struct PingCall {
  u64 own_flag;
  u64 peer_flag;
  u64 result;
  u64 spin_bound;
  u32 rounds;
  u32 starts;
  u32 release;
  u32 unused;
};

// Must match _PingResult in link_gpus.py.
struct PingResult {
  u32 status;
  u32 rounds_done;
  u64 total_cycles;
  u64 total_ns;
  u32 trip_cycles[MAX_ROUNDS];
};

// Must match _StreamCall in link_gpus.py.
struct StreamCall {
  u64 targets[8];
  u64 sink;
  u64 lines_per_target;
  u32 num_targets;
  u32 repeats;
};

__device__ __forceinline__ u64 read_global_ns() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__device__ __forceinline__ void raise_flag(const PingCall& call, u32 round) {
  if (call.release) {
    store_release(call.peer_flag, round);
  } else {
    store_line(reinterpret_cast<u8*>(call.peer_flag), make_uint4(round, round, round, round));
  }
}

__device__ __forceinline__ u32 read_flag(const PingCall& call) {
  return call.release ? load_acquire(call.own_flag) : load_line(reinterpret_cast<const u8*>(call.own_flag)).x;
}

__device__ __forceinline__ bool wait_for_flag(const PingCall& call, u32 round, long long start_clock) {
  while (read_flag(call) != round) {
    if (static_cast<u64>(clock64() - start_clock) > call.spin_bound) return false;
  }
  return true;
}

extern "C" __global__ void fastverify_ping_pong(const __grid_constant__ PingCall call) {
  __shared__ u32 trip_cycles[MAX_ROUNDS];
  const long long start_clock = clock64();
  const u64 start_ns = read_global_ns();
  u32 done = 0;
  while (done < call.rounds) {
    const long long begin = clock64();
    if (call.starts) raise_flag(call, done + 1);
    if (!wait_for_flag(call, done + 1, start_clock)) break;
    if (!call.starts) raise_flag(call, done + 1);
    trip_cycles[done++] = static_cast<u32>(clock64() - begin);
  }
  PingResult* result = reinterpret_cast<PingResult*>(call.result);
  result->total_cycles = static_cast<u64>(clock64() - start_clock);
  result->total_ns = read_global_ns() - start_ns;
  result->rounds_done = done;
  for (u32 round = 0; round < done; ++round) result->trip_cycles[round] = trip_cycles[round];
  result->status = done == call.rounds ? DONE : GAVE_UP;
}

// The lines first, first + stride, ... of one target are one thread's; gridDim.x is a multiple of the targets.
struct Part {
  u64 base;
  u64 first;
  u64 stride;
};

__device__ __forceinline__ Part part_of(const StreamCall& call) {
  const u32 blocks_per_target = gridDim.x / call.num_targets;
  Part part;
  part.base = call.targets[blockIdx.x % call.num_targets];
  part.first = static_cast<u64>(blockIdx.x / call.num_targets) * blockDim.x + threadIdx.x;
  part.stride = static_cast<u64>(blocks_per_target) * blockDim.x;
  return part;
}

extern "C" __global__ void fastverify_store_stream(const __grid_constant__ StreamCall call) {
  const Part part = part_of(call);
  for (u32 repeat = 0; repeat < call.repeats; ++repeat) {
    for (u64 line = part.first; line < call.lines_per_target; line += part.stride) {
      store_line(reinterpret_cast<u8*>(part.base + line * 16), make_uint4(repeat, repeat, repeat, repeat));
    }
  }
}

extern "C" __global__ void fastverify_load_stream(const __grid_constant__ StreamCall call) {
  constexpr int IN_FLIGHT = 4;
  const Part part = part_of(call);
  u32 seen = 0;
  for (u32 repeat = 0; repeat < call.repeats; ++repeat) {
    for (u64 line = part.first; line < call.lines_per_target; line += IN_FLIGHT * part.stride) {
      uint4 lines[IN_FLIGHT];
#pragma unroll
      for (int k = 0; k < IN_FLIGHT; ++k) {
        const u64 at = line + k * part.stride;
        lines[k] = make_uint4(0, 0, 0, 0);
        if (at < call.lines_per_target) lines[k] = load_line(reinterpret_cast<const u8*>(part.base + at * 16));
      }
#pragma unroll
      for (int k = 0; k < IN_FLIGHT; ++k) seen |= lines[k].x ^ lines[k].y ^ lines[k].z ^ lines[k].w;
    }
  }
  // The memory holds equal words per line, so this never happens; it keeps the loads.
  if (seen != 0) *reinterpret_cast<u32*>(call.sink) = seen;
}
