// One-shot all-reduce in which some of the blocks only send and the others only sum. For host memory and messages of
// many batches: a flag costs its sender a fence of two microseconds and its reader a round trip over PCIe. A block that
// does both in turn (all_reduce.cu) has them in series, and all blocks then send together and read together. Here they
// overlap, and PCIe carries both directions at once.
//
// In place. A block that sums overwrites what the block that sends has to have read. So a sender raises its flag for its
// own rank too, and nobody writes a batch of the output before all ranks' flags are there: the sender's loads of the batch
// came before its stores, the barrier and the release.
//
// A sender waits for nobody. A block that gave up writes nothing, since its rank may still have to send what lies there.
// Senders have the lower block indices: blocks that find room later are those that wait.

#include "inbox.cuh"

// All threads of the block have stored their lines of the batch. For every rank, this one too.
template <class C>
__device__ __forceinline__ void announce_to_all(const C& channel, u64 batch, u64 num_batches) {
  __syncthreads();
  const u32 reader = threadIdx.x;
  if (reader < (C::Boxes::ARE_SHARED ? 1 : C::SIZE)) {
    store_release(channel.flag(reader, channel.own, batch, num_batches), channel.epoch);
  }
}

// Until the lines of the batch are there from every rank, this one too. False on all threads of the block if one gave up.
template <class C>
__device__ __forceinline__ bool await_all(const C& channel, Turn& turn, u64 batch, u64 num_batches) {
  const u32 source = threadIdx.x;
  if (source < C::SIZE) {
    const u64 flag = channel.flag(channel.own, source, batch, num_batches);
    const auto peer = [&] { return channel.rank_of(source); };
    while (load_acquire(flag) != channel.epoch && may_look_again(channel.call, turn, batch, peer)) {
    }
  }
  turn.has_given_up = __syncthreads_or(turn.has_given_up) != 0;
  return !turn.has_given_up;
}

// Batches first, first + step, ...; the next one is loaded while the lines of this one are on their way.
template <class C>
__device__ __forceinline__ void send_batches(const C& channel, Turn& turn, u64 first, u64 step, u64 num_units) {
  const Call& call = channel.call;
  const u64 num_batches = count_batches(num_units);
  Unit<C::WORDS> own[UNITS];
  if (first < num_batches) load_own(call, span_of(first, num_units), own);
  retire_epoch(call, turn);
  for (u64 batch = first; batch < num_batches; batch += step) {
    send<typename C::Protocol, typename C::Boxes>(call, turn, span_of(batch, num_units), own);
    if (batch + step < num_batches) load_own(call, span_of(batch + step, num_units), own);
    announce_to_all(channel, batch, num_batches);
  }
}

template <class C>
__device__ __forceinline__ void sum_batches(const C& channel, Turn& turn, u64 first, u64 step, u64 num_units) {
  const Call& call = channel.call;
  const u64 num_batches = count_batches(num_units);
  retire_epoch(call, turn);
  for (u64 batch = first; batch < num_batches; batch += step) {
    const Span span = span_of(batch, num_units);
    Unit<C::WORDS> own[UNITS];
    load_own(call, span, own);
    if (!await_all(channel, turn, batch, num_batches)) return;
    Sums<C::WORDS> sums[UNITS];
    sum_up(channel, turn, span, 0, own, sums);
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      const u64 unit = span.first + k * span.stride;
      if (unit < span.end) store_unit(call.output, unit, call.num_bytes, sums[k].round());
    }
  }
}

template <class Boxes>
__device__ __forceinline__ void all_reduce_split(const Call& call) {
  Turn turn = begin_turn(call);
  const auto channel = open_channel<FlagProtocol, Boxes>(call, turn, FIRST);
  const u64 num_units = count_units<FlagProtocol::WORDS>(call.num_bytes);
  const u64 num_senders = min(static_cast<u64>(call.num_senders), count_batches(num_units));  // as launch.py trims
  if (blockIdx.x < num_senders) {
    send_batches(channel, turn, blockIdx.x, num_senders, num_units);
  } else {
    sum_batches(channel, turn, blockIdx.x - num_senders, gridDim.x - num_senders, num_units);
  }
  end_turn(call, turn);
}

#define FV_KERNEL(name, boxes)                                                                                    \
  extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_all_reduce_split_##name(                \
      const __grid_constant__ Call call) {                                                                        \
    all_reduce_split<boxes>(call);                                                                                \
  }

FV_KERNEL(flags, Inboxes)
FV_KERNEL(outbox_flags, Outboxes)
