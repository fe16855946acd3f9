// Memory as other ranks see it: stores on their way, and the order in which they may arrive.

#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine.hpp"

namespace emulator {

struct Random {
  u64 state;

  u64 next() {
    state += 0x9e3779b97f4a7c15ull;
    u64 bits = state;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebull;
    return bits ^ bits >> 31;
  }
  u32 below(u64 limit) { return static_cast<u32>(next() % limit); }
};

// Who stores or loads, and how many barriers it has passed. Stores of one block before a barrier happen before
// whatever a thread of that block does after it; the same for clusters, and for launches of one rank.
struct Viewpoint {
  u64 thread = 0, block = 0, cluster = 0, launch = 0;
  u64 block_barriers = 0, cluster_barriers = 0;

  bool happened_before(const Viewpoint& later) const {
    return thread == later.thread || launch < later.launch || (block == later.block && block_barriers < later.block_barriers) ||
           (cluster == later.cluster && cluster_barriers < later.cluster_barriers);
  }
};

struct Store {
  u64 number;
  u64 address;
  unsigned char bytes[8];
  u32 num_bytes;
  bool is_release;
  Viewpoint from;
};

// The stores of one rank that have not arrived. A place is an aligned 8-byte word of memory.
class StoreBuffer {
 public:
  void push(u64 address, const void* bytes, u32 num_bytes, bool is_release, const Viewpoint& from);
  // Lay over `bytes`, which came from memory, what the viewer must see although it has not arrived.
  void overlay(u64 address, void* bytes, u32 num_bytes, const Viewpoint& viewer) const;
  bool is_empty() const { return places_.empty(); }
  // One store arrives, unless the one that was drawn has to wait for others.
  void arrive_any(Random& random);
  void arrive_before(const Viewpoint& later);
  void arrive_within(u64 begin, u64 end);

 private:
  bool may_arrive(const Store& store) const;
  void arrive_first(u64 place);
  template <class Condition>
  void arrive_up_to_last(Condition condition);

  std::unordered_map<u64, std::deque<Store>> queues_;
  std::vector<u64> places_;
  u64 num_stores_ = 0;
};

struct Region {
  u32 rank;
  std::string name;
  u64 begin, end;
};

}  // namespace emulator
