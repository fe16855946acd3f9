// Inboxes: the memory through which ranks hand each other data, and the two protocols in which data says "I am here".
//
// Every rank owns one inbox per protocol, with two slots of WORLD areas, one area per source rank. Call number e of a
// protocol (its epoch, counted in device memory so that a replayed graph advances it) uses slot e % 2. A rank writes its
// input into its area of every peer's inbox and reads the peers' areas of its own. There is no barrier.
//
// Why two slots suffice. A rank that writes slot e % 2 in call e + 2 has ended call e + 1, so it has seen data of call
// e + 1 from every peer. That peer had ended call e before, so it had read, and where needed emptied, all of slot e % 2.
// This needs: one stream per rank, the same calls in the same order on every rank, at least one byte per call.
//
// Ordering. LineProtocol relies on each aligned 8-byte half of a line arriving whole; SentinelProtocol on each aligned
// 4-byte word. Neither relies on any order between lines. Volatile accesses are relaxed at system scope.
//
// Limits: pointers aligned to 16 bytes; 2 to 8 ranks. Compiled with FV_WORLD, FV_DTYPE, FV_UNITS and FV_MAX_THREADS set (kernels.py).

#include "ptx.cuh"

#define FV_FLOAT32 0
#define FV_BFLOAT16 1
#define FV_FLOAT16 2

constexpr int WORLD = FV_WORLD;
constexpr int UNITS = FV_UNITS;  // units in flight per thread
constexpr int ELEMENTS_PER_WORD = FV_DTYPE == FV_FLOAT32 ? 1 : 2;
constexpr u32 EMPTY = 0xffffffffu;
static_assert(WORLD >= 2 && WORLD <= 8, "Call has room for 8 ranks");

// Must match _Call in rank.py.
struct Call {
  u64 inboxes[8];  // inboxes[p]: where rank p reads, as this rank addresses it
  u64 own_inbox;
  u64 control;
  u64 input;
  u64 output;
  u64 residual;
  u64 weight;
  u64 num_bytes;
  u64 area_bytes;
  u64 spin_bound;  // clock cycles from the start of the kernel; 0 waits for ever
  u32 rank;
  u32 protocol;  // index of the epoch in Control
  u32 pause_ns;
  u32 row_bytes;
  u32 max_chunks;
  float eps;
};

// Must match ControlWord in rank.py.
struct Control {
  u32 epochs[3];
  u32 arrived_blocks;
  u32 is_overdue;
  u32 overdue_peer;
  u32 overdue_epoch;
  u32 overdue_unit;
};

// What one kernel of one rank knows about its call.
struct Turn {
  u32 epoch;
  u32 slot;
  long long start_clock;
};

__device__ __forceinline__ Control* control_of(const Call& call) { return reinterpret_cast<Control*>(call.control); }

// ---- epochs ----

__device__ __forceinline__ Turn begin_turn(const Call& call) {
  overlap_launches();
  u32 epoch = *const_cast<volatile u32*>(&control_of(call)->epochs[call.protocol]);
  return Turn{epoch, epoch & 1u, clock64()};
}

// Ends with the parity that alternates, and never at 0, which untouched memory holds.
__device__ __forceinline__ u32 epoch_after(u32 epoch) { return epoch == 0xffffffffu ? 2u : epoch + 1u; }

// Every thread of the block has read the epoch: the last block to say so moves it on for the next call.
__device__ __forceinline__ void retire_epoch(const Call& call, const Turn& turn) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  Control* control = control_of(call);
  if (atomicAdd(&control->arrived_blocks, 1u) == gridDim.x - 1) {
    control->arrived_blocks = 0;
    control->epochs[call.protocol] = epoch_after(turn.epoch);
  }
}

__device__ __forceinline__ bool is_overdue(const Call& call, const Turn& turn) {
  return call.spin_bound != 0 && static_cast<u64>(clock64() - turn.start_clock) > call.spin_bound;
}

__device__ __noinline__ void report_overdue(const Call& call, const Turn& turn, u32 peer, u64 unit) {
  Control* control = control_of(call);
  if (atomicExch(&control->is_overdue, 1u) != 0) return;
  control->overdue_peer = peer;
  control->overdue_epoch = turn.epoch;
  control->overdue_unit = static_cast<u32>(unit);
}

// ---- units: what one thread moves at a time ----

template <int WORDS>
struct Unit {
  u32 words[WORDS];
};

template <int WORDS>
__device__ __forceinline__ Unit<WORDS> load_unit(u64 base, u64 index, u64 num_bytes) {
  Unit<WORDS> unit;
  const u64 start = index * (4 * WORDS);
  if (start + 4 * WORDS <= num_bytes) {
    if constexpr (WORDS == 4) {
      const uint4 value = *reinterpret_cast<const uint4*>(base + start);
      unit.words[0] = value.x, unit.words[1] = value.y, unit.words[2] = value.z, unit.words[3] = value.w;
    } else {
      const uint2 value = *reinterpret_cast<const uint2*>(base + start);
      unit.words[0] = value.x, unit.words[1] = value.y;
    }
    return unit;
  }
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    const u64 at = start + 4 * w;
    unit.words[w] = 0;
    if (at + 4 <= num_bytes) {
      unit.words[w] = *reinterpret_cast<const u32*>(base + at);
    } else if (at + 2 <= num_bytes) {
      unit.words[w] = *reinterpret_cast<const u16*>(base + at);
    }
  }
  return unit;
}

template <int WORDS>
__device__ __forceinline__ void store_unit(u64 base, u64 index, u64 num_bytes, const Unit<WORDS>& unit) {
  const u64 start = index * (4 * WORDS);
  if (start + 4 * WORDS <= num_bytes) {
    if constexpr (WORDS == 4) {
      *reinterpret_cast<uint4*>(base + start) = make_uint4(unit.words[0], unit.words[1], unit.words[2], unit.words[3]);
    } else {
      *reinterpret_cast<uint2*>(base + start) = make_uint2(unit.words[0], unit.words[1]);
    }
    return;
  }
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    const u64 at = start + 4 * w;
    if (at + 4 <= num_bytes) {
      *reinterpret_cast<u32*>(base + at) = unit.words[w];
    } else if (at + 2 <= num_bytes) {
      *reinterpret_cast<u16*>(base + at) = static_cast<u16>(unit.words[w]);
    }
  }
}

__device__ __forceinline__ void unpack(u32 word, float (&values)[ELEMENTS_PER_WORD]) {
#if FV_DTYPE == FV_FLOAT32
  values[0] = __uint_as_float(word);
#elif FV_DTYPE == FV_BFLOAT16
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000u);
#else
  values[0] = widen_fp16(static_cast<u16>(word));
  values[1] = widen_fp16(static_cast<u16>(word >> 16));
#endif
}

__device__ __forceinline__ u32 pack(const float (&values)[ELEMENTS_PER_WORD]) {
#if FV_DTYPE == FV_FLOAT32
  return __float_as_uint(values[0]);
#elif FV_DTYPE == FV_BFLOAT16
  return round_to_bf16x2(values[0], values[1]);
#else
  return round_to_fp16x2(values[0], values[1]);
#endif
}

template <int WORDS>
struct Sums {
  float values[WORDS][ELEMENTS_PER_WORD];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
#pragma unroll
      for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[w][e] = 0.0f;
  }

  __device__ __forceinline__ void add(const Unit<WORDS>& unit) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      float terms[ELEMENTS_PER_WORD];
      unpack(unit.words[w], terms);
#pragma unroll
      for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[w][e] += terms[e];
    }
  }

  __device__ __forceinline__ Unit<WORDS> round() const {
    Unit<WORDS> unit;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) unit.words[w] = pack(values[w]);
    return unit;
  }
};

// ---- the two protocols; a unit travels in one 16-byte line ----

// Eight bytes of data and the epoch twice: twice the bytes, nothing to clean up.
struct LineProtocol {
  static constexpr int WORDS = 2;

  __device__ static __forceinline__ uint4 seal(const Unit<2>& unit, u32 epoch) {
    return make_uint4(unit.words[0], epoch, unit.words[1], epoch);
  }
  __device__ static __forceinline__ bool has_arrived(uint4 line, u32 epoch) { return line.y == epoch && line.w == epoch; }
  __device__ static __forceinline__ Unit<2> open(uint4 line) { return Unit<2>{{line.x, line.z}}; }
  __device__ static __forceinline__ void recycle(u8*) {}
};

// A word that is not EMPTY has arrived. The reader empties what it read. The bits of EMPTY are a NaN in every dtype; a
// sender replaces them by another NaN.
struct SentinelProtocol {
  static constexpr int WORDS = 4;
  static constexpr u32 OTHER_NAN = 0x7fff7fffu;

  __device__ static __forceinline__ u32 avoid_empty(u32 word) { return word == EMPTY ? OTHER_NAN : word; }
  __device__ static __forceinline__ uint4 seal(const Unit<4>& unit, u32) {
    return make_uint4(avoid_empty(unit.words[0]), avoid_empty(unit.words[1]), avoid_empty(unit.words[2]),
                      avoid_empty(unit.words[3]));
  }
  __device__ static __forceinline__ bool has_arrived(uint4 line, u32) {
    return line.x != EMPTY && line.y != EMPTY && line.z != EMPTY && line.w != EMPTY;
  }
  __device__ static __forceinline__ Unit<4> open(uint4 line) { return Unit<4>{{line.x, line.y, line.z, line.w}}; }
  __device__ static __forceinline__ void recycle(u8* address) {
    store_line(address, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY));
  }
};

// The units first, first + stride, ... below end: what one thread moves in one batch.
struct Span {
  u64 first;
  u64 stride;
  u64 end;
};

__device__ __forceinline__ u64 area_offset(const Call& call, const Turn& turn, u32 source) {
  return (turn.slot * WORLD + source) * call.area_bytes;
}

template <int WORDS>
__device__ __forceinline__ void load_own(const Call& call, const Span& span, Unit<WORDS> (&own)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit < span.end) own[k] = load_unit<WORDS>(call.input, unit, call.num_bytes);
  }
}

template <class Protocol>
__device__ __forceinline__ void send(const Call& call, const Turn& turn, const Span& span,
                                     const Unit<Protocol::WORDS> (&own)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end) continue;
    const uint4 line = Protocol::seal(own[k], turn.epoch);
#pragma unroll
    for (u32 peer = 0; peer < WORLD; ++peer) {
      if (peer == call.rank) continue;
      store_line(reinterpret_cast<u8*>(call.inboxes[peer] + area_offset(call, turn, call.rank) + unit * 16), line);
    }
  }
}

template <class Protocol>
__device__ __forceinline__ uint4 wait_for_line(const Call& call, const Turn& turn, const u8* address, uint4 line,
                                               u32 source, u64 unit) {
  while (!Protocol::has_arrived(line, turn.epoch)) {
    if (is_overdue(call, turn)) {
      report_overdue(call, turn, source, unit);
      break;
    }
    if (call.pause_ns != 0) __nanosleep(call.pause_ns);
    line = load_line(address);
  }
  return line;
}

// Sums in rank order, this rank's own input at its place: the same bits on every rank.
template <class Protocol>
__device__ __forceinline__ void receive(const Call& call, const Turn& turn, const Span& span,
                                        const Unit<Protocol::WORDS> (&own)[UNITS], Sums<Protocol::WORDS> (&sums)[UNITS]) {
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
    sums[k].clear();
#pragma unroll
    for (u32 source = 0; source < WORLD; ++source) {
      if (source == call.rank) {
        sums[k].add(own[k]);
        continue;
      }
      u8* address = reinterpret_cast<u8*>(call.own_inbox + area_offset(call, turn, source) + unit * 16);
      sums[k].add(Protocol::open(wait_for_line<Protocol>(call, turn, address, lines[k][source], source, unit)));
      Protocol::recycle(address);
    }
  }
}
