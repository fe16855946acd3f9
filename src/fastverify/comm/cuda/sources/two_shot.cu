// Two-shot all-reduce: every rank sums one part of the message (reduce-scatter) and hands it to all (all-gather). A rank
// sends 2 (n - 1) / n of its message instead of n - 1 times, for a second trip over the link.
//
// Phase FIRST carries inputs to the rank that sums them, phase GATHER the sums; they have regions of their own. With
// lines and sentinels a thread goes through all of it alone: it sends unit u of every part, sums unit u of its own part
// as that arrives, passes it on, and collects unit u of the other parts. No barrier but the one that retires the epoch.
//
// Why two slots suffice: inbox.cuh. What a rank holds after call e + 1 contains every rank's input also where its own
// part was empty and no input was sent to it, through the sums that it received.
//
// In place is safe: a thread stores only units that it alone has read.

#include "parts.cuh"

template <class Protocol, class Boxes>
__device__ __forceinline__ void two_shot(const Call& call) {
  Turn turn = begin_turn(call);
  const auto inputs = open_channel<Protocol, Boxes>(call, turn, FIRST);
  const auto outputs = open_channel<Protocol, Boxes>(call, turn, GATHER);
  const Parts parts = cut_into_parts(inputs);
  const u64 num_batches = count_batches(parts.units);
  for (u64 batch = blockIdx.x, before = NO_BATCH;; before = batch, batch += gridDim.x) {
    if (batch < num_batches) scatter(inputs, turn, parts, batch, num_batches);
    if (before == NO_BATCH) {
      retire_epoch(call, turn);
    } else {
      const Span span = span_of(before, parts.size(call.rank));
      Sums<Protocol::WORDS> sums[UNITS];
      sum_own_part(inputs, turn, parts, span, before, num_batches, sums);
      share(outputs, turn, parts, span, before, num_batches, sums);
      collect(outputs, turn, parts, before, num_batches);
    }
    if (batch >= num_batches) break;
  }
  end_turn(call, turn);
}

#define FV_KERNEL(name, protocol, boxes)                                                                        \
  extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_two_shot_##name(                      \
      const __grid_constant__ Call call) {                                                                      \
    two_shot<protocol, boxes>(call);                                                                            \
  }

FV_KERNEL(lines, LineProtocol, Inboxes)
FV_KERNEL(sentinel, SentinelProtocol, Inboxes)
FV_KERNEL(flags, FlagProtocol, Inboxes)
FV_KERNEL(outbox_lines, LineProtocol, Outboxes)
FV_KERNEL(outbox_flags, FlagProtocol, Outboxes)
