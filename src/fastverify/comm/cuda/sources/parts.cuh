// The stages that two-shot and islands share: a message is cut into one part per member of a channel, each member sums
// its own part and hands the sum to the others. One thread takes the same units of every part through all stages.

#pragma once

#include "inbox.cuh"

// Parts are of whole units; the last ones may be shorter, or empty.
struct Parts {
  u64 units;
  u64 num_units;

  __device__ __forceinline__ u64 start(u32 part) const { return part * units; }
  __device__ __forceinline__ u64 size(u32 part) const {
    const u64 begin = start(part);
    if (begin >= num_units) return 0;
    return num_units - begin < units ? num_units - begin : units;
  }
};

template <class C>
__device__ __forceinline__ Parts cut_into_parts(const C& channel) {
  const u64 num_units = count_units<C::WORDS>(channel.call.num_bytes);
  return Parts{(num_units + C::SIZE - 1) / C::SIZE, num_units};
}

// The other members whose part has this unit.
template <class C>
__device__ __forceinline__ u32 others_with(const C& channel, const Parts& parts, u64 unit) {
  u32 sources = all_but_own(channel);
#pragma unroll
  for (u32 part = 0; part < C::SIZE; ++part) {
    if (unit >= parts.size(part)) sources &= ~(1u << part);
  }
  return sources;
}

// Units of one batch of every other member's part, to that member. An outbox holds the whole message.
template <class C>
__device__ __forceinline__ void scatter(const C& channel, const Turn& turn, const Parts& parts, u64 batch, u64 num_batches) {
  const Call& call = channel.call;
  const Span span = span_of(batch, parts.units);
  Unit<C::WORDS> units[UNITS][C::SIZE];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    const u32 readers = others_with(channel, parts, unit);
#pragma unroll
    for (u32 part = 0; part < C::SIZE; ++part) {
      if (has_member(readers, part)) units[k][part] = load_unit<C::WORDS>(call.input, parts.start(part) + unit, call.num_bytes);
    }
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    const u32 readers = others_with(channel, parts, unit);
#pragma unroll
    for (u32 part = 0; part < C::SIZE; ++part) {
      if (!has_member(readers, part)) continue;
      const u64 place = C::Boxes::ARE_SHARED ? parts.start(part) + unit : unit;
      store_line(channel.line(part, channel.own, place), C::Protocol::seal(units[k][part], channel.epoch));
    }
  }
  announce(channel, turn, batch, num_batches);
}

// Sums of one batch of this rank's own part, over the members.
template <class C>
__device__ __forceinline__ void sum_own_part(const C& channel, Turn& turn, const Parts& parts, const Span& span, u64 batch,
                                             u64 num_batches, Sums<C::WORDS> (&sums)[UNITS]) {
  const u64 start = parts.start(channel.own);
  Unit<C::WORDS> own[UNITS];
  load_units<C::WORDS>(channel.call.input, start, span, channel.call.num_bytes, own);
  await(channel, turn, batch, num_batches);
  sum_up(channel, turn, span, C::Boxes::ARE_SHARED ? start : 0, own, sums);
}

// Rounded sums of one batch of the own part, to every member and into the output; the output takes the bits that were
// sent, so that every rank has the same. A thread that has given up holds no sum.
template <class C>
__device__ __forceinline__ void share(const C& channel, const Turn& turn, const Parts& parts, const Span& span, u64 batch,
                                      u64 num_batches, const Sums<C::WORDS> (&sums)[UNITS]) {
  const Call& call = channel.call;
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end || turn.has_given_up) continue;
    const uint4 line = C::Protocol::seal(sums[k].round(), channel.epoch);
    put_for_all(channel, unit, line);
    store_unit(call.output, parts.start(channel.own) + unit, call.num_bytes, C::Protocol::open(line));
  }
  announce(channel, turn, batch, num_batches);
}

// One batch of every other member's sums, into the output.
template <class C>
__device__ __forceinline__ void collect(const C& channel, Turn& turn, const Parts& parts, u64 batch, u64 num_batches) {
  const Call& call = channel.call;
  await(channel, turn, batch, num_batches);
  const Span span = span_of(batch, parts.units);
  uint4 lines[UNITS][C::SIZE];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    const bool looks = looks_first(unit, parts.units);
    first_look(channel, others_with(channel, parts, unit), channel.spot(unit), looks, lines[k]);
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    const u32 sources = others_with(channel, parts, unit);
    take(channel, turn, sources, channel.spot(unit), looks_first(unit, parts.units), lines[k]);
#pragma unroll
    for (u32 source = 0; source < C::SIZE; ++source) {
      if (!has_member(sources, source)) continue;
      store_unit(call.output, parts.start(source) + unit, call.num_bytes, C::Protocol::open(lines[k][source]));
    }
  }
}
