// The memory through which ranks hand each other data, and three ways in which a reader knows that data is there.
//
// Every rank owns memory that its peers reach. Inboxes: a rank writes into the memory of each reader, which polls its
// own. Outboxes: a rank writes once into its own memory, where every reader looks; for memory that is far from all of
// them anyhow (host.py). A protocol has a region per phase of a call, a region has two slots, a slot has areas.
//
// Why two slots suffice. The sum (or gather) that a call returns holds every rank's input, and a rank sends its input
// only after its call before has ended. So a rank that has ended call e + 1 knows that every rank has ended call e: has
// read, and where needed emptied, all of slot e % 2 in every region, its own memory and the others'. In call e + 2 it
// may write there. This needs: one stream per rank, the same calls in the same order on every rank, at least one element
// per call. It holds for each region by itself, so calls of any kind and size may follow each other: between them a slot
// of lines or flags holds older epochs only, and a slot of sentinels is empty.
//
// Ordering. Lines rely on each aligned 8-byte half of a line arriving whole; sentinels on each aligned 4-byte word.
// Neither relies on any order between lines. Flags: the release store of the flag, after a barrier of the block, pairs
// with the acquire load of the reader. Volatile accesses are relaxed at system scope.

#pragma once

#include "units.cuh"

constexpr bool SCOUTS = FV_SCOUTS != 0;
constexpr u32 EMPTY = 0xffffffffu;
constexpr u64 LINE_BYTES = 16;
constexpr u64 FLAG_STRIDE = 64;  // must match FLAG_STRIDE in workspace.py

// ---- protocols; a unit travels in one line of 16 bytes ----

// Eight bytes of data and the epoch twice: twice the bytes, nothing to clean up.
struct LineProtocol {
  static constexpr int WORDS = 2;
  static constexpr bool HAS_FLAGS = false;

  __device__ static __forceinline__ uint4 seal(const Unit<2>& unit, u32 epoch) {
    return make_uint4(unit.words[0], epoch, unit.words[1], epoch);
  }
  __device__ static __forceinline__ bool has_arrived(uint4 line, u32 epoch) { return line.y == epoch && line.w == epoch; }
  __device__ static __forceinline__ uint4 nothing() { return make_uint4(0, 0, 0, 0); }  // no epoch is 0
  __device__ static __forceinline__ Unit<2> open(uint4 line) { return Unit<2>{{line.x, line.z}}; }
  __device__ static __forceinline__ void recycle(u8*) {}
};

// A word that is not EMPTY has arrived. The reader empties what it read. The bits of EMPTY are a NaN in every dtype; a
// sender replaces them by another NaN.
struct SentinelProtocol {
  static constexpr int WORDS = 4;
  static constexpr bool HAS_FLAGS = false;
  static constexpr u32 OTHER_NAN = 0x7fff7fffu;

  __device__ static __forceinline__ u32 avoid_empty(u32 word) { return word == EMPTY ? OTHER_NAN : word; }
  __device__ static __forceinline__ uint4 seal(const Unit<4>& unit, u32) {
    return make_uint4(avoid_empty(unit.words[0]), avoid_empty(unit.words[1]), avoid_empty(unit.words[2]),
                      avoid_empty(unit.words[3]));
  }
  __device__ static __forceinline__ bool has_arrived(uint4 line, u32) {
    return line.x != EMPTY && line.y != EMPTY && line.z != EMPTY && line.w != EMPTY;
  }
  __device__ static __forceinline__ uint4 nothing() { return make_uint4(EMPTY, EMPTY, EMPTY, EMPTY); }
  __device__ static __forceinline__ Unit<4> open(uint4 line) { return Unit<4>{{line.x, line.y, line.z, line.w}}; }
  __device__ static __forceinline__ void recycle(u8* address) { store_line(address, nothing()); }
};

// Bare data; one epoch word per batch says that it is there. A flag costs a fence, but over PCIe one polled word
// replaces polls of every line.
struct FlagProtocol {
  static constexpr int WORDS = 4;
  static constexpr bool HAS_FLAGS = true;

  __device__ static __forceinline__ uint4 seal(const Unit<4>& unit, u32) {
    return make_uint4(unit.words[0], unit.words[1], unit.words[2], unit.words[3]);
  }
  __device__ static __forceinline__ bool has_arrived(uint4, u32) { return true; }
  __device__ static __forceinline__ uint4 nothing() { return make_uint4(0, 0, 0, 0); }
  __device__ static __forceinline__ Unit<4> open(uint4 line) { return Unit<4>{{line.x, line.y, line.z, line.w}}; }
  __device__ static __forceinline__ void recycle(u8*) {}
};

// ---- whose memory ----

struct Inboxes {
  static constexpr bool ARE_SHARED = false;
};

struct Outboxes {
  static constexpr bool ARE_SHARED = true;
};

// Where this rank looks for line `place` of every source: what all of them have in common of its address.
struct Spot {
  u64 address;
  u32 place;
};

// One phase of one call among SIZE ranks, members 0 to SIZE - 1: first, first + step, first + 2 * step, ...
template <class Protocol_, class Boxes_, u32 SIZE_>
struct Channel {
  using Protocol = Protocol_;
  using Boxes = Boxes_;
  static constexpr u32 SIZE = SIZE_;
  static constexpr int WORDS = Protocol::WORDS;

  const Call& call;
  const Region& region;
  u32 slot;
  u32 epoch;
  u32 first;
  u32 step;
  u32 own;

  __device__ __forceinline__ u32 rank_of(u32 member) const { return first + member * step; }
  __device__ __forceinline__ u64 slot_address(u32 reader, u32 source) const {
    const u32 owner = rank_of(Boxes::ARE_SHARED ? source : reader);
    return call.inboxes[owner] + region.offset + slot * region.slot_bytes;
  }
  // Line `place` of what `source` leaves for `reader`; an outbox has one area, its owner's.
  __device__ __forceinline__ u8* line(u32 reader, u32 source, u64 place) const {
    const u64 area = Boxes::ARE_SHARED ? 0 : source * region.area_bytes;
    return reinterpret_cast<u8*>(slot_address(reader, source) + area + place * LINE_BYTES);
  }
  __device__ __forceinline__ Spot spot(u64 place) const {
    Spot found{place * LINE_BYTES + (Boxes::ARE_SHARED ? 0 : slot_address(own, 0)), static_cast<u32>(place)};
    keep(found.address);
    return found;
  }
  __device__ __forceinline__ u8* line(u32 source, const Spot& spot) const {
    return reinterpret_cast<u8*>(spot.address + (Boxes::ARE_SHARED ? slot_address(own, source) : source * region.area_bytes));
  }
  __device__ __forceinline__ u64 flag(u32 reader, u32 source, u64 batch, u64 num_batches) const {
    const u64 index = (Boxes::ARE_SHARED ? 0 : source * num_batches) + batch;
    return slot_address(reader, source) + region.flags + index * FLAG_STRIDE;
  }
};

template <class Protocol, class Boxes>
__device__ __forceinline__ Channel<Protocol, Boxes, WORLD> open_channel(const Call& call, const Turn& turn, Phase phase) {
  return {call, call.regions[phase], turn.slot, turn.epoch, 0, 1, call.rank};
}

// ---- batches: what one block moves at a time ----

// The units first, first + stride, ... below end. Narrow, since registers are scarce: messages end far below 2^32 units.
struct Span {
  u32 first;
  u32 stride;
  u32 end;
};

// Kernels send batch i + 1 before they wait for batch i: links carry both directions at once.
constexpr u64 NO_BATCH = ~0ull;

__device__ __forceinline__ Span span_of(u64 batch, u64 num_units) {
  return Span{static_cast<u32>(batch) * blockDim.x * UNITS + threadIdx.x, blockDim.x, static_cast<u32>(num_units)};
}

__device__ __forceinline__ u64 count_batches(u64 num_units) {
  const u64 batch_units = static_cast<u64>(blockDim.x) * UNITS;
  return (num_units + batch_units - 1) / batch_units;
}

template <int WORDS>
__device__ __forceinline__ u64 count_units(u64 num_bytes) {
  return (num_bytes + 4 * WORDS - 1) / (4 * WORDS);
}

// ---- flags; nothing happens here for the other protocols ----

// All threads of the block have written their lines of the batch.
template <class C>
__device__ __forceinline__ void announce(const C& channel, const Turn& turn, u64 batch, u64 num_batches) {
  if constexpr (C::Protocol::HAS_FLAGS) {
    __syncthreads();
    const u32 reader = threadIdx.x;
    const bool has_reader = C::Boxes::ARE_SHARED ? reader == 0 : reader < C::SIZE && reader != channel.own;
    if (has_reader && !turn.has_given_up) {
      store_release(channel.flag(reader, channel.own, batch, num_batches), channel.epoch);
    }
  }
}

// Until every member's lines of the batch are there. The threads that announce learn whether one of them gave up.
template <class C>
__device__ __forceinline__ void await(const C& channel, Turn& turn, u64 batch, u64 num_batches) {
  if constexpr (C::Protocol::HAS_FLAGS) {
    const u32 source = threadIdx.x;
    if (source < C::SIZE && source != channel.own) {
      const u64 flag = channel.flag(channel.own, source, batch, num_batches);
      const auto peer = [&] { return channel.rank_of(source); };
      while (load_acquire(flag) != channel.epoch && may_look_again(channel.call, turn, batch, peer)) {
      }
    }
    u32 has_given_up = turn.has_given_up;
#pragma unroll
    for (u32 distance = 4; distance > 0; distance /= 2) has_given_up |= __shfl_xor_sync(0xffffffffu, has_given_up, distance);
    turn.has_given_up = has_given_up != 0;
    __syncthreads();
  }
}

// ---- lines ----

template <class C>
__device__ __forceinline__ void put_for_all(const C& channel, u64 place, uint4 line) {
  if constexpr (C::Boxes::ARE_SHARED) {
    store_line(channel.line(0, channel.own, place), line);
  } else {
#pragma unroll
    for (u32 reader = 0; reader < C::SIZE; ++reader) {
      if (reader != channel.own) store_line(channel.line(reader, channel.own, place), line);
    }
  }
}

// Members as bits.
template <class C>
__device__ __forceinline__ u32 all_but_own(const C& channel) {
  return ((1u << C::SIZE) - 1u) & ~(1u << channel.own);
}

__device__ __forceinline__ bool has_member(u32 members, u32 member) { return (members >> member & 1u) != 0; }

__device__ __forceinline__ u32 first_member(u32 members) {
  u32 member = 0;
  while (!has_member(members, member)) ++member;
  return member;
}

template <class C>
__device__ __forceinline__ void look(const C& channel, u32 sources, const Spot& spot, uint4 (&lines)[C::SIZE]) {
#pragma unroll
  for (u32 source = 0; source < C::SIZE; ++source) {
    if (has_member(sources, source)) lines[source] = load_line(channel.line(source, spot));
  }
}

// Scouts: over PCIe, looks of all threads read the whole message once per round trip, and the link is busy with reads in
// vain. With scouts only the thread of a warp that has the last unit looks, until its lines are there; those of the others
// were sent with them, so that one look of each mostly suffices.
__device__ __forceinline__ bool looks_first(u64 unit, u64 end) {
  return !SCOUTS || threadIdx.x % 32 == 31 || unit + 1 == end;
}

template <class C>
__device__ __forceinline__ void first_look(const C& channel, u32 sources, const Spot& spot, bool looks,
                                           uint4 (&lines)[C::SIZE]) {
  if (looks || C::Protocol::HAS_FLAGS) {
    look(channel, sources, spot, lines);
  } else {
#pragma unroll
    for (u32 source = 0; source < C::SIZE; ++source) lines[source] = C::Protocol::nothing();
  }
}

template <class C>
__device__ __forceinline__ u32 find_missing(const C& channel, u32 sources, const uint4 (&lines)[C::SIZE]) {
#pragma unroll
  for (u32 source = 0; source < C::SIZE; ++source) {
    if (C::Protocol::has_arrived(lines[source], channel.epoch)) sources &= ~(1u << source);
  }
  return sources;
}

// Looks again until the lines are there, at all sources together: one after the other, each would cost a look of its own.
template <class C>
__device__ __forceinline__ void look_until_there(const C& channel, Turn& turn, u32 sources, const Spot& spot,
                                                 uint4 (&lines)[C::SIZE]) {
  u32 missing = find_missing(channel, sources, lines);
  while (missing != 0) {
    if (!may_look_again(channel.call, turn, spot.place, [&] { return channel.rank_of(first_member(missing)); })) return;
    look(channel, missing, spot, lines);
    missing = find_missing(channel, missing, lines);
  }
}

// What the first look has not shown, until it is there. Every thread of the warp takes part, those without a unit with no
// sources.
template <class C>
__device__ __forceinline__ void wait_for(const C& channel, Turn& turn, u32 sources, const Spot& spot, bool looks,
                                         uint4 (&lines)[C::SIZE]) {
  if constexpr (SCOUTS && !C::Protocol::HAS_FLAGS) {
    look_until_there(channel, turn, looks ? sources : 0, spot, lines);
    __syncwarp();
    if (!looks) look(channel, sources, spot, lines);
  }
  look_until_there(channel, turn, sources, spot, lines);
}

// The places of lines that have been read are free again.
template <class C>
__device__ __forceinline__ void give_back(const C& channel, u32 sources, const Spot& spot) {
#pragma unroll
  for (u32 source = 0; source < C::SIZE; ++source) {
    if (has_member(sources, source)) C::Protocol::recycle(channel.line(source, spot));
  }
}

template <class C>
__device__ __forceinline__ void take(const C& channel, Turn& turn, u32 sources, const Spot& spot, bool looks,
                                     uint4 (&lines)[C::SIZE]) {
  wait_for(channel, turn, sources, spot, looks, lines);
  give_back(channel, sources, spot);
}

template <int WORDS>
__device__ __forceinline__ void load_units(u64 base, u64 start, const Span& span, u64 num_bytes, Unit<WORDS> (&units)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit < span.end) units[k] = load_unit<WORDS>(base, start + unit, num_bytes);
  }
}

template <class C>
__device__ __forceinline__ void find_spots(const C& channel, const Span& span, u64 start, Spot (&spots)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) spots[k] = channel.spot(start + span.first + k * span.stride);
}

// Sums in rank order, this rank's own units at their place: the same bits on every rank. What was read is still to be
// given back.
template <class C>
__device__ __forceinline__ void add_up(const C& channel, Turn& turn, const Span& span, const Spot (&spots)[UNITS],
                                       const Unit<C::WORDS> (&own)[UNITS], Sums<C::WORDS> (&sums)[UNITS]) {
  const u32 sources = all_but_own(channel);
  uint4 lines[UNITS][C::SIZE];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    first_look(channel, unit < span.end ? sources : 0, spots[k], looks_first(unit, span.end), lines[k]);
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    wait_for(channel, turn, unit < span.end ? sources : 0, spots[k], looks_first(unit, span.end), lines[k]);
    if (unit >= span.end) continue;
#pragma unroll
    for (u32 source = 0; source < C::SIZE; ++source) {
      const Unit<C::WORDS> unit_of_source = source == channel.own ? own[k] : C::Protocol::open(lines[k][source]);
      if (source == 0) {
        sums[k].set(unit_of_source);
      } else {
        sums[k].add(unit_of_source);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void give_back_all(const C& channel, const Span& span, const Spot (&spots)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    if (span.first + k * span.stride < span.end) give_back(channel, all_but_own(channel), spots[k]);
  }
}

// `start`: place of unit 0.
template <class C>
__device__ __forceinline__ void sum_up(const C& channel, Turn& turn, const Span& span, u64 start,
                                       const Unit<C::WORDS> (&own)[UNITS], Sums<C::WORDS> (&sums)[UNITS]) {
  Spot spots[UNITS];
  find_spots(channel, span, start, spots);
  add_up(channel, turn, span, spots, own, sums);
  give_back_all(channel, span, spots);
}

// ---- one-shot: whole messages to everyone ----

template <int WORDS>
__device__ __forceinline__ void load_own(const Call& call, const Span& span, Unit<WORDS> (&own)[UNITS]) {
  load_units<WORDS>(call.input, 0, span, call.num_bytes, own);
}

template <class Protocol, class Boxes = Inboxes>
__device__ __forceinline__ void send(const Call& call, const Turn& turn, const Span& span,
                                     const Unit<Protocol::WORDS> (&own)[UNITS]) {
  const auto channel = open_channel<Protocol, Boxes>(call, turn, FIRST);
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit < span.end) put_for_all(channel, unit, Protocol::seal(own[k], turn.epoch));
  }
}

template <class Protocol, class Boxes = Inboxes>
__device__ __forceinline__ void receive(const Call& call, Turn& turn, const Span& span,
                                        const Unit<Protocol::WORDS> (&own)[UNITS], Sums<Protocol::WORDS> (&sums)[UNITS]) {
  sum_up(open_channel<Protocol, Boxes>(call, turn, FIRST), turn, span, 0, own, sums);
}
