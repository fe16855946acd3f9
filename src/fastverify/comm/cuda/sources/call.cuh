// What a kernel is told, what ranks count, and how long they wait.
//
// Every kernel of a rank takes one Call. The epoch numbers the rank's calls of any kind, in device memory, so that a
// replayed graph advances it; call e uses slot e % 2 of every memory region that it touches.
//
// Waiting costs nothing but the look itself while data is on time. A thread that has waited for LOOK_CYCLES looks at the
// clock and asks whether the host wants the kernel to leave; when it gives up it says so once, in host memory, which the
// host reads without a call to CUDA.
//
// Compiled with FV_WORLD, FV_DTYPE, FV_UNITS, FV_MAX_THREADS, FV_CLUSTER and FV_SCOUTS set (kernels.py). Limits: 2 to 8 ranks.

#pragma once

#include "ptx.cuh"

constexpr u32 WORLD = FV_WORLD;
constexpr int UNITS = FV_UNITS;  // units in flight per thread
static_assert(FV_WORLD >= 2 && FV_WORLD <= 8, "Call has room for 8 ranks");

// Memory of one phase of a protocol, at the same place in every rank's memory. A slot is cut into areas, one per source
// rank, by each call for its own size: all ranks make the same calls, so they cut alike.
struct Region {
  u64 offset;
  u64 slot_bytes;
  u64 flags;  // where the slot's flags begin, counted from the slot
  u64 area_bytes;
};

enum Phase { FIRST, GATHER, EXCHANGE };

// Must match Call in call.py.
struct Call {
  u64 inboxes[8];  // memory of rank p, as this rank addresses it
  u64 control;
  u64 status;
  u64 input;
  u64 output;
  u64 residual;
  u64 weight;
  u64 bias;
  u64 quantised;
  u64 scale_out;
  u64 num_bytes;
  u64 output_stride;  // all-gather: bytes from one rank's data to the next
  u64 spin_bound;     // clock cycles from the start of the kernel; 0 waits for ever
  Region regions[3];  // by Phase
  u32 rank;
  u32 pause_ns;
  u32 row_bytes;
  float eps;
};

// Must match call.py.
struct Control {
  u32 epoch;
  u32 arrived_blocks;
  u32 has_reported;
  u32 is_looking;
  u32 is_aborted;
};

// In host memory. Must match call.py. `abort` is written by the host, the others by the first thread that gives up.
struct Status {
  u32 code;
  u32 peer;
  u32 epoch;
  u32 unit;
  u32 abort;
};

constexpr u32 LATE = 1, ABORTED = 2;  // Status.code
constexpr u32 LOOK_CYCLES = 200000;  // Arbitrary: about 0.1 ms, above most calls whose peers are on time

// What one thread knows about its call.
struct Turn {
  u32 epoch;
  u32 slot;
  long long start_clock;
  u32 last_look;  // at clock and host; lower half of the clock
  u32 ticket;     // of this block among those that have read the epoch; thread 0 holds it
  bool has_given_up;
};

__device__ __forceinline__ Control* control_of(const Call& call) { return reinterpret_cast<Control*>(call.control); }

// ---- epochs ----

// After await_launch_before. What a kernel loads besides belongs before it: then all is on its way together.
__device__ __forceinline__ Turn read_turn(const Call& call) {
  const u32 epoch = *const_cast<volatile u32*>(&control_of(call)->epoch);
  const long long now = clock64();
  return Turn{epoch, epoch & 1u, now, static_cast<u32>(now), 0, false};
}

__device__ __forceinline__ Turn begin_turn(const Call& call) {
  await_launch_before();
  allow_next_launch();
  return read_turn(call);
}

// Ends with the parity that alternates, and never at 0, which untouched memory holds.
__device__ __forceinline__ u32 epoch_after(u32 epoch) { return epoch == 0xffffffffu ? 2u : epoch + 1u; }

// Every thread of the block has read the epoch. It belongs after the first sends, where the barrier costs nothing: data is
// on its way. Nobody waits for the ticket before `end_turn`.
__device__ __forceinline__ void retire_epoch(const Call& call, Turn& turn) {
  __syncthreads();
  if (threadIdx.x == 0) turn.ticket = atomicAdd(&control_of(call)->arrived_blocks, 1u);
}

// The block with the last ticket moves the epoch on for the next call.
__device__ __forceinline__ void end_turn(const Call& call, const Turn& turn) {
  if (threadIdx.x != 0 || turn.ticket != gridDim.x - 1) return;
  Control* control = control_of(call);
  control->arrived_blocks = 0;
  control->epoch = epoch_after(turn.epoch);
}

// ---- waiting ----

// One thread at a time reads the host's word, for all. Reads of one place over PCIe queue up, a microsecond each: when every
// waiting thread made one, a rank that had waited once came late to the next call, its peer then waited, and so on.
__device__ __forceinline__ bool is_told_to_leave(const Call& call) {
  volatile Control* control = control_of(call);
  if (control->is_aborted == 0 && control->is_looking == 0 && atomicExch(&control_of(call)->is_looking, 1u) == 0) {
    if (reinterpret_cast<volatile Status*>(call.status)->abort != 0) control->is_aborted = 1;
    control->is_looking = 0;
  }
  return control->is_aborted != 0;
}

// Off the fast path: whether the host wants the kernel to leave or the wait has lasted too long; says so to the host.
__device__ __noinline__ bool should_give_up(const Call& call, u32 epoch, long long waited, u32 peer, u64 unit) {
  const bool is_late = call.spin_bound != 0 && static_cast<u64>(waited) > call.spin_bound;
  const bool is_aborted = is_told_to_leave(call);
  if (!is_late && !is_aborted) return false;
  if (atomicExch(&control_of(call)->has_reported, 1u) == 0) {
    volatile Status* status = reinterpret_cast<volatile Status*>(call.status);
    status->peer = peer;
    status->epoch = epoch;
    status->unit = static_cast<u32>(unit);
    __threadfence_system();
    status->code = is_aborted ? ABORTED : LATE;
  }
  return true;
}

// Between two looks at what has not come: time for the host's word, and a pause. False when it is time to give up. A
// thread that has given up looks no more: what it then holds is not data, and it must not pass it on. `find_peer` says
// who is waited for, where that has to be said.
template <class FindPeer>
__device__ __forceinline__ bool may_look_again(const Call& call, Turn& turn, u64 unit, FindPeer find_peer) {
  if (turn.has_given_up) return false;
  const long long now = clock64();
  if (static_cast<u32>(now) - turn.last_look > LOOK_CYCLES) {
    turn.has_given_up = should_give_up(call, turn.epoch, now - turn.start_clock, find_peer(), unit);
    turn.last_look = static_cast<u32>(now);
  }
  if (call.pause_ns != 0) __nanosleep(call.pause_ns);
  return !turn.has_given_up;
}
