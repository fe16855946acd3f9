// What a running kernel sees of the emulated machine: who it is, barriers, and memory whose stores arrive late.
//
// One OS thread; every emulated thread is a fiber, and each function below is a place where another one may go on.
// A store to inbox memory waits in its rank's buffer and arrives later in any order, except: stores to one place keep
// their order; a release store, and a fence, wait for every store that happened before them.

#pragma once

#include <cstdint>

namespace emulator {

using u32 = std::uint32_t;
using u64 = unsigned long long;

struct Index {
  u32 x = 0, y = 0, z = 0;
};

extern Index thread_index, block_index, block_size, grid_size;

// Inbox memory. Outside the regions that were claimed for it, a store or load is an error.
void load(u64 address, void* bytes, u32 num_bytes);
void store(u64 address, const void* bytes, u32 num_bytes);
void store_release(u64 address, u32 word);
void fence();

// `doing` is what a report of a deadlock says this thread did last. In vain: it looks for something and will look again.
void pause(const char* doing);
void pause_in_vain(const char* doing);
long long clock();

void block_barrier();
void cluster_arrive();
void cluster_wait();
u32 exchange_in_warp(u32 value, u32 partner);

// Shared memory of the running block, and the place in another block of the cluster that corresponds to one in it.
constexpr u64 SHARED_BYTES = 16 << 10;
void* shared(u64 offset);
void* in_block(void* place, u32 block);

void wait_for_grid_before();
void allow_grid_after();

// What a compiled source offers.
struct Module {
  const char* const* names;
  void (*const* functions)(const void* call);
  u32 num_functions;
  u32 call_bytes;
};

}  // namespace emulator
