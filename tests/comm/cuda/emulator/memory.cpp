#include "memory.hpp"

#include <algorithm>
#include <cstring>

namespace emulator {

void StoreBuffer::push(u64 address, const void* bytes, u32 num_bytes, bool is_release, const Viewpoint& from) {
  const u64 place = address / 8;
  std::deque<Store>& queue = queues_[place];
  if (queue.empty()) places_.push_back(place);
  Store store{num_stores_++, address, {}, num_bytes, is_release, from};
  std::memcpy(store.bytes, bytes, num_bytes);
  queue.push_back(store);
}

void StoreBuffer::overlay(u64 address, void* bytes, u32 num_bytes, const Viewpoint& viewer) const {
  const auto found = queues_.find(address / 8);
  if (found == queues_.end()) return;
  for (const Store& store : found->second) {
    if (!store.from.happened_before(viewer)) continue;
    const u64 begin = std::max(address, store.address);
    const u64 end = std::min(address + num_bytes, store.address + store.num_bytes);
    if (begin < end)
      std::memcpy(static_cast<char*>(bytes) + (begin - address), store.bytes + (begin - store.address), end - begin);
  }
}

void StoreBuffer::arrive_any(Random& random) {
  if (places_.empty()) return;
  const u64 place = places_[random.below(places_.size())];
  if (may_arrive(queues_[place].front())) arrive_first(place);
}

void StoreBuffer::arrive_before(const Viewpoint& later) {
  arrive_up_to_last([&](const Store& store) { return store.from.happened_before(later); });
}

void StoreBuffer::arrive_within(u64 begin, u64 end) {
  arrive_up_to_last([&](const Store& store) { return begin <= store.address && store.address < end; });
}

bool StoreBuffer::may_arrive(const Store& store) const {
  if (!store.is_release) return true;
  for (const auto& [place, queue] : queues_)
    for (const Store& other : queue)
      if (other.number < store.number && other.from.happened_before(store.from)) return false;
  return true;
}

void StoreBuffer::arrive_first(u64 place) {
  std::deque<Store>& queue = queues_[place];
  const Store& store = queue.front();
  std::memcpy(reinterpret_cast<void*>(store.address), store.bytes, store.num_bytes);
  queue.pop_front();
  if (!queue.empty()) return;
  queues_.erase(place);
  const auto at = std::find(places_.begin(), places_.end(), place);
  *at = places_.back();
  places_.pop_back();
}

// In every place: the last store that meets the condition, and those before it.
template <class Condition>
void StoreBuffer::arrive_up_to_last(Condition condition) {
  const std::vector<u64> places = places_;
  for (const u64 place : places) {
    const std::deque<Store>& queue = queues_[place];
    std::size_t count = 0;
    for (std::size_t i = 0; i < queue.size(); ++i)
      if (condition(queue[i])) count = i + 1;
    for (std::size_t i = 0; i < count; ++i) arrive_first(place);
  }
}

}  // namespace emulator
