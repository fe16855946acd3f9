// One-shot all-reduce: every rank sends its whole input to every peer and sums what arrives.
//
// A block sends batch i + 1 before it waits for batch i, since links carry both directions at once. Lines and sentinels
// need no barrier but the one that retires the epoch; flags need one per batch (inbox.cuh).
//
// Blocks with the same index wait for each other across ranks, so the grids of all ranks on one GPU must fit at once.

#include "inbox.cuh"

template <class Protocol, class Boxes>
__device__ __forceinline__ void all_reduce(const Call& call) {
  constexpr int WORDS = Protocol::WORDS;
  Turn turn = begin_turn(call);
  const auto channel = open_channel<Protocol, Boxes>(call, turn, FIRST);
  const u64 num_units = count_units<WORDS>(call.num_bytes), num_batches = count_batches(num_units);
  Unit<WORDS> own[UNITS], next[UNITS];
  for (u64 batch = blockIdx.x, before = NO_BATCH;; before = batch, batch += gridDim.x) {
    if (batch < num_batches) {
      const Span span = span_of(batch, num_units);
      load_own(call, span, next);
      send<Protocol, Boxes>(call, turn, span, next);
      announce(channel, turn, batch, num_batches);
    }
    if (before == NO_BATCH) {
      retire_epoch(call, turn);
    } else {
      await(channel, turn, before, num_batches);
      const Span span = span_of(before, num_units);
      Sums<WORDS> sums[UNITS];
      receive<Protocol, Boxes>(call, turn, span, own, sums);
#pragma unroll
      for (int k = 0; k < UNITS; ++k) {
        const u64 unit = span.first + k * span.stride;
        if (unit < span.end) store_unit(call.output, unit, call.num_bytes, sums[k].round());
      }
    }
    if (batch >= num_batches) break;
#pragma unroll
    for (int k = 0; k < UNITS; ++k) own[k] = next[k];
  }
  end_turn(call, turn);
}

#define FV_KERNEL(name, protocol, boxes)                                                                          \
  extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_all_reduce_##name(                      \
      const __grid_constant__ Call call) {                                                                        \
    all_reduce<protocol, boxes>(call);                                                                            \
  }

FV_KERNEL(lines, LineProtocol, Inboxes)
FV_KERNEL(sentinel, SentinelProtocol, Inboxes)
FV_KERNEL(flags, FlagProtocol, Inboxes)
FV_KERNEL(outbox_lines, LineProtocol, Outboxes)
FV_KERNEL(outbox_flags, FlagProtocol, Outboxes)

// The floor of any launch, for the benchmark.
extern "C" __global__ void fastverify_empty(const __grid_constant__ Call call) {
  await_launch_before();
  allow_next_launch();
}
