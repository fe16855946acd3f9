// The shared memory of one group: a header, one control block per rank, two slots per rank.
//
// Life: rank 0 creates the named POSIX object, every rank maps it and says so, rank 0 removes the name. From then on
// the memory lives exactly as long as the processes that map it, so nothing is left behind however they end.
// A rank's slots are allocated by that rank, so that they lie in memory near its core.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "wait.hpp"

namespace fastverify {

// Two 64-byte lines, because some prefetchers fetch lines in pairs.
constexpr size_t kControlAlign = 128;
constexpr int kMaxRanks = 64;

// What a rank called; ranks compare it to catch calls that do not belong together.
struct Call {
  uint64_t num_bytes;
  uint32_t kind;  // operation, dtype and algorithm
};

// Written by its rank alone. Must stay inside kControlAlign bytes.
struct alignas(kControlAlign) Control {
  std::atomic<uint32_t> published;  // last epoch whose input lies in slot[epoch % 2]
  std::atomic<uint32_t> reduced;    // last epoch whose reduced part lies there too
  std::atomic<uint32_t> state;
  Call calls[2];
};
static_assert(sizeof(Control) == kControlAlign);
static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes can only share atomics without locks");

enum ControlState : uint32_t { kAbsent = 0, kJoined = 1, kClosed = 2 };

struct SegmentConfig {
  std::string name;
  int rank;
  int world_size;
  size_t slot_bytes;
  uint32_t first_epoch;
};

class Segment {
 public:
  // Returns when every rank has mapped it. Throws RankMissingError, CallMismatchError or SystemRefusedError.
  Segment(const SegmentConfig& config, const WaitPolicy& policy, WaitObserver& observer);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int rank() const { return config_.rank; }
  int world_size() const { return config_.world_size; }
  size_t slot_bytes() const { return config_.slot_bytes; }
  Control& control(int rank) const { return controls_[rank]; }
  char* slot(int rank, uint32_t epoch) const {
    return slots_ + (static_cast<size_t>(rank) * 2 + epoch % 2) * config_.slot_bytes;
  }

 private:
  struct Header;

  void create();
  void open(const WaitPolicy& policy, WaitObserver& observer);
  void map(int descriptor);
  void allocate(int descriptor, size_t offset, size_t num_bytes);
  void join(const WaitPolicy& policy, WaitObserver& observer);
  void wait_step(Waiter& waiter, WaitObserver& observer, uint64_t missing) const;
  void unmap() noexcept;
  size_t slots_offset() const;
  size_t total_bytes() const;

  SegmentConfig config_;
  char* base_ = nullptr;
  Header* header_ = nullptr;
  Control* controls_ = nullptr;
  char* slots_ = nullptr;
};

// "rank 1" or "ranks 1, 3" for the bits of a mask.
std::string name_ranks(uint64_t mask);

}  // namespace fastverify
