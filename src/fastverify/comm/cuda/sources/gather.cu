// All-gather: every rank's bytes to every rank, output[r] = input of rank r. The phases, slots and batches are those of
// the one-shot all-reduce, without the sum.
//
// Bits arrive as they are, so there is no sentinel: it would replace one pattern by another. Outputs need no alignment,
// since rank r's bytes begin at r * output_stride.

#include "inbox.cuh"

// Output addresses may be odd: as if every unit were the last one.
template <int WORDS>
__device__ __forceinline__ void store_bytes(u64 base, u64 index, u64 num_bytes, const Unit<WORDS>& unit) {
  const u64 start = index * (4 * WORDS);
  if (base % (4 * WORDS) == 0) {
    store_unit(base, index, num_bytes, unit);
  } else {
    store_tail(base + start, num_bytes - start, unit);
  }
}

// Sends one batch and keeps this rank's own copy of it.
template <class C>
__device__ __forceinline__ void hand_out(const C& channel, const Turn& turn, u64 num_units, u64 batch, u64 num_batches) {
  const Call& call = channel.call;
  const Span span = span_of(batch, num_units);
  Unit<C::WORDS> own[UNITS];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit < span.end) own[k] = load_unit<C::WORDS>(call.input, unit, call.num_bytes);
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end) continue;
    put_for_all(channel, unit, C::Protocol::seal(own[k], channel.epoch));
    store_bytes(call.output + call.rank * call.output_stride, unit, call.num_bytes, own[k]);
  }
  announce(channel, turn, batch, num_batches);
}

template <class C>
__device__ __forceinline__ void gather(const C& channel, Turn& turn, u64 num_units, u64 batch, u64 num_batches) {
  const Call& call = channel.call;
  await(channel, turn, batch, num_batches);
  const Span span = span_of(batch, num_units);
  const u32 sources = all_but_own(channel);
  uint4 lines[UNITS][C::SIZE];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    first_look(channel, unit < span.end ? sources : 0, channel.spot(unit), looks_first(unit, span.end), lines[k]);
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    take(channel, turn, unit < span.end ? sources : 0, channel.spot(unit), looks_first(unit, span.end), lines[k]);
    if (unit >= span.end) continue;
#pragma unroll
    for (u32 source = 0; source < C::SIZE; ++source) {
      if (source == channel.own) continue;
      store_bytes(call.output + source * call.output_stride, unit, call.num_bytes, C::Protocol::open(lines[k][source]));
    }
  }
}

template <class Protocol, class Boxes>
__device__ __forceinline__ void all_gather(const Call& call) {
  Turn turn = begin_turn(call);
  const auto channel = open_channel<Protocol, Boxes>(call, turn, FIRST);
  const u64 num_units = count_units<Protocol::WORDS>(call.num_bytes), num_batches = count_batches(num_units);
  for (u64 batch = blockIdx.x, before = NO_BATCH;; before = batch, batch += gridDim.x) {
    if (batch < num_batches) hand_out(channel, turn, num_units, batch, num_batches);
    if (before == NO_BATCH) {
      retire_epoch(call, turn);
    } else {
      gather(channel, turn, num_units, before, num_batches);
    }
    if (batch >= num_batches) break;
  }
  end_turn(call, turn);
}

#define FV_KERNEL(name, protocol, boxes)                                                                          \
  extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_all_gather_##name(                      \
      const __grid_constant__ Call call) {                                                                        \
    all_gather<protocol, boxes>(call);                                                                            \
  }

FV_KERNEL(lines, LineProtocol, Inboxes)
FV_KERNEL(flags, FlagProtocol, Inboxes)
FV_KERNEL(outbox_lines, LineProtocol, Outboxes)
FV_KERNEL(outbox_flags, FlagProtocol, Outboxes)
