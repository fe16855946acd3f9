// All-reduce over two islands, ranks 0 to n/2 - 1 and n/2 to n - 1, for machines where links within an island are better
// than links between them: two CPU sockets, or two PCIe switches. 4 and 8 ranks.
//
// Four stages: a rank sends every part to the island's rank that sums it (phase FIRST); that rank sends its float32
// partial sum to its counterpart in the other island (EXCHANGE); both add the partial sums of the islands, round once,
// and send the result to their own island (GATHER). A rank writes across once, 1 / (n/2) of the message in float32.
//
// Staged: each thread ends a stage for all of its units before the next, and a unit crosses only after the whole island
// has sent it. Between islands every rank has one reader, so one switch does not write behind two root complexes at
// once; some PCIe switches lose most of their bandwidth when it does.
//
// A rank sends its partial sum to itself as well and reads both from memory: the same additions on both sides, so the
// same bits: (island A in rank order) + (island B in rank order).
//
// Why two slots suffice: inbox.cuh. What a rank holds after call e + 1 contains every rank's input, though some of it
// came through others.

#include "parts.cuh"

constexpr u32 HALF = WORLD / 2;
static_assert(WORLD == 4 || WORLD == 8, "islands are halves of 4 or 8 ranks");

// The ranks of this rank's island.
template <class Protocol>
__device__ __forceinline__ Channel<Protocol, Inboxes, HALF> open_island(const Call& call, const Turn& turn, Phase phase) {
  const u32 own = call.rank % HALF;
  return {call, call.regions[phase], turn.slot, turn.epoch, call.rank - own, 1, own};
}

// The two ranks that sum the same part; a member is an island.
template <class Protocol>
__device__ __forceinline__ Channel<Protocol, Inboxes, 2> open_pair(const Call& call, const Turn& turn) {
  return {call, call.regions[EXCHANGE], turn.slot, turn.epoch, call.rank % HALF, HALF, call.rank / HALF};
}

// A unit of partial sums in float32 takes as many lines as a word has elements.
__device__ __forceinline__ u64 partial_place(const Parts& parts, int element, u64 unit) { return element * parts.units + unit; }

template <class C>
__device__ __forceinline__ void exchange(const C& pair, const Turn& turn, const Parts& parts, const Span& span,
                                         const Sums<C::WORDS> (&sums)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end || turn.has_given_up) continue;
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) {
      const uint4 line = C::Protocol::seal(sums[k].floats(e), pair.epoch);
#pragma unroll
      for (u32 reader = 0; reader < 2; ++reader) store_line(pair.line(reader, pair.own, partial_place(parts, e, unit)), line);
    }
  }
}

template <class C>
__device__ __forceinline__ void add_islands(const C& pair, Turn& turn, const Parts& parts, const Span& span,
                                            Sums<C::WORDS> (&sums)[UNITS]) {
  constexpr u32 BOTH = 3;  // members as bits
  uint4 lines[UNITS][ELEMENTS_PER_WORD][2];
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    const bool looks = looks_first(unit, span.end);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) {
      first_look(pair, unit < span.end ? BOTH : 0, pair.spot(partial_place(parts, e, unit)), looks, lines[k][e]);
    }
  }
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    const bool looks = looks_first(unit, span.end);
    sums[k].clear();
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) {
      take(pair, turn, unit < span.end ? BOTH : 0, pair.spot(partial_place(parts, e, unit)), looks, lines[k][e]);
#pragma unroll
      for (u32 island = 0; island < 2; ++island) sums[k].add_floats(e, C::Protocol::open(lines[k][e][island]));
    }
  }
}

template <class Protocol>
__device__ __forceinline__ void islands(const Call& call) {
  Turn turn = begin_turn(call);
  const auto inputs = open_island<Protocol>(call, turn, FIRST);
  const auto outputs = open_island<Protocol>(call, turn, GATHER);
  const auto pair = open_pair<Protocol>(call, turn);
  const Parts parts = cut_into_parts(inputs);
  const u64 num_batches = count_batches(parts.units);
  for (u64 batch = blockIdx.x; batch < num_batches; batch += gridDim.x) scatter(inputs, turn, parts, batch, num_batches);
  retire_epoch(call, turn);
  Sums<Protocol::WORDS> sums[UNITS];
  for (u64 batch = blockIdx.x; batch < num_batches; batch += gridDim.x) {
    const Span span = span_of(batch, parts.size(inputs.own));
    sum_own_part(inputs, turn, parts, span, batch, num_batches, sums);
    exchange(pair, turn, parts, span, sums);
  }
  for (u64 batch = blockIdx.x; batch < num_batches; batch += gridDim.x) {
    const Span span = span_of(batch, parts.size(inputs.own));
    add_islands(pair, turn, parts, span, sums);
    share(outputs, turn, parts, span, batch, num_batches, sums);
  }
  for (u64 batch = blockIdx.x; batch < num_batches; batch += gridDim.x) collect(outputs, turn, parts, batch, num_batches);
  end_turn(call, turn);
}

#define FV_KERNEL(name, protocol)                                                                              \
  extern "C" __global__ void __launch_bounds__(FV_MAX_THREADS) fastverify_islands_##name(                      \
      const __grid_constant__ Call call) {                                                                     \
    islands<protocol>(call);                                                                                   \
  }

FV_KERNEL(lines, LineProtocol)
FV_KERNEL(sentinel, SentinelProtocol)
