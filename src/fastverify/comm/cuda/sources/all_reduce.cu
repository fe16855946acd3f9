// One-shot all-reduce: every rank sends its whole input to every peer and sums what arrives.
//
// lines and sentinel: readiness travels with the data (inbox.cuh). flags: data first, then one epoch word per chunk; the
// release store of the word, after a barrier of the block, pairs with the acquire load of the reader. A flag costs a
// fence, but over PCIe one polled word replaces polls of every line. A flag of call e or earlier never equals e + 2, so
// flags need no clearing either; two slots suffice as for the lines.
//
// Blocks with the same index wait for each other across ranks, so the grids of all ranks on one GPU must fit at once.

#include "inbox.cuh"

template <class Protocol>
__device__ __forceinline__ void all_reduce(const Call& call) {
  constexpr int WORDS = Protocol::WORDS;
  const Turn turn = begin_turn(call);
  Span span;
  span.first = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  span.stride = static_cast<u64>(gridDim.x) * blockDim.x;
  span.end = (call.num_bytes + 4 * WORDS - 1) / (4 * WORDS);
  Unit<WORDS> own[UNITS];
  load_own(call, span, own);
  retire_epoch(call, turn);
  while (span.first < span.end) {
    send<Protocol>(call, turn, span, own);
    Sums<WORDS> sums[UNITS];
    receive<Protocol>(call, turn, span, own, sums);
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      const u64 unit = span.first + k * span.stride;
      if (unit < span.end) store_unit(call.output, unit, call.num_bytes, sums[k].round());
    }
    span.first += UNITS * span.stride;
    load_own(call, span, own);
  }
}

extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_all_reduce_lines(const __grid_constant__ Call call) {
  all_reduce<LineProtocol>(call);
}

extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_all_reduce_sentinel(const __grid_constant__ Call call) {
  all_reduce<SentinelProtocol>(call);
}

// ---- flags ----

constexpr int FLAG_STRIDE = 64;  // must match FLAG_STRIDE in workspace.py

__device__ __forceinline__ u64 flag_offset(const Call& call, const Turn& turn, u32 source, u64 chunk) {
  const u64 data_bytes = 2 * WORLD * call.area_bytes;
  return data_bytes + ((turn.slot * WORLD + source) * static_cast<u64>(call.max_chunks) + chunk) * FLAG_STRIDE;
}

__device__ __forceinline__ void raise_flags(const Call& call, const Turn& turn, u64 chunk) {
  __syncthreads();
  const u32 peer = threadIdx.x;
  if (peer >= WORLD || peer == call.rank) return;
  const u64 flag = call.inboxes[peer] + flag_offset(call, turn, call.rank, chunk);
  store_release(flag, turn.epoch);
}

__device__ __forceinline__ void wait_for_flags(const Call& call, const Turn& turn, u64 chunk) {
  const u32 source = threadIdx.x;
  if (source < WORLD && source != call.rank) {
    const u64 flag = call.own_inbox + flag_offset(call, turn, source, chunk);
    while (load_acquire(flag) != turn.epoch) {
      if (is_overdue(call, turn)) {
        report_overdue(call, turn, source, chunk);
        break;
      }
      if (call.pause_ns != 0) __nanosleep(call.pause_ns);
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void send_chunk(const Call& call, const Turn& turn, const Span& span) {
  Unit<4> own[UNITS];
  load_own(call, span, own);
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end) continue;
    const uint4 line = make_uint4(own[k].words[0], own[k].words[1], own[k].words[2], own[k].words[3]);
#pragma unroll
    for (u32 peer = 0; peer < WORLD; ++peer) {
      if (peer == call.rank) continue;
      store_line(reinterpret_cast<u8*>(call.inboxes[peer] + area_offset(call, turn, call.rank) + unit * 16), line);
    }
  }
}

__device__ __forceinline__ void sum_chunk(const Call& call, const Turn& turn, const Span& span) {
  Unit<4> own[UNITS];
  load_own(call, span, own);
  uint4 lines[UNITS][WORLD];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
#pragma unroll
    for (u32 source = 0; source < WORLD; ++source) {
      const u64 address = call.own_inbox + area_offset(call, turn, source) + unit * 16;
      if (unit < span.end && source != call.rank) lines[k][source] = load_line(reinterpret_cast<const u8*>(address));
    }
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end) continue;
    Sums<4> sums;
    sums.clear();
#pragma unroll
    for (u32 source = 0; source < WORLD; ++source) {
      if (source == call.rank) {
        sums.add(own[k]);
      } else {
        const uint4 line = lines[k][source];
        sums.add(Unit<4>{{line.x, line.y, line.z, line.w}});
      }
    }
    store_unit(call.output, unit, call.num_bytes, sums.round());
  }
}

extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_all_reduce_flags(const __grid_constant__ Call call) {
  const Turn turn = begin_turn(call);
  retire_epoch(call, turn);
  const u64 num_units = (call.num_bytes + 15) / 16;
  const u64 chunk_units = static_cast<u64>(blockDim.x) * UNITS;
  const u64 num_chunks = (num_units + chunk_units - 1) / chunk_units;
  Span span;
  span.stride = blockDim.x;
  span.end = num_units;
  for (u64 chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
    span.first = chunk * chunk_units + threadIdx.x;
    send_chunk(call, turn, span);
    raise_flags(call, turn, chunk);
  }
  for (u64 chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
    span.first = chunk * chunk_units + threadIdx.x;
    wait_for_flags(call, turn, chunk);
    sum_chunk(call, turn, span);
  }
}

// The floor of any launch, for the benchmark.
extern "C" __global__ void fastverify_empty(const __grid_constant__ Call call) { overlap_launches(); }
