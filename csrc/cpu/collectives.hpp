// All-reduce, fused all-reduce + residual + RMSNorm, and all-gather between processes over shared memory.
//
// Regime: one host, messages of a few KB to a few MB. Small messages take one data round (ONE_SHOT: every rank sums all
// of it), larger ones two (TWO_SHOT: every rank sums its part, then all copy the parts). Longer than a slot: in pieces.
//
// Each piece is one epoch. In epoch e a rank
//   1. copies its input into its slot[e % 2] and stores published = e with release;
//   2. loads every peer's published with acquire until it reached e, and reads the peers' slots;
//   3. TWO_SHOT only: writes its reduced part over its own part of its slot, stores reduced = e with release, and loads
//      every peer's reduced with acquire before it reads that peer's part.
//
// Why two slots are enough without a closing barrier: a rank overwrites slot[e % 2] in epoch e + 2, after it saw every
// peer's published reach e + 1. A peer stores e + 1 (release) after its last read of epoch e. So each read of epoch e
// happens before the overwrite. The same holds for Call, of which there are also two. In step 3 the rank overwrites the
// only part of its slot that no peer reads in step 2.
//
// The copies into slots may stream past the caches. A peer has read each line of a slot two epochs ago, so an ordinary
// store must first take the line back from the peer's cache; where cores share no cache that costs more than going
// through memory. Streamed copies end with a store fence, because the release store alone does not order them.
//
// Epochs are 32-bit and compared by signed difference, so they may wrap. Pointers need the alignment of their element.
// One thread at a time; every rank makes the same calls in the same order.
#pragma once

#include <memory>

#include "kernels.hpp"
#include "segment.hpp"

namespace fastverify {

struct RmsNormCall {
  void* x;         // [rows, hidden_size]; receives the normed rows
  void* residual;  // [rows, hidden_size]; updated in place
  const void* weight;
  size_t rows;
  size_t hidden_size;
  float eps;
  Dtype dtype;
};

// From how many bytes of a piece on. What is best depends on the machine; see comm/chooser.py.
struct Thresholds {
  size_t two_shot_min_bytes = SIZE_MAX;  // must change at the same call on every rank
  size_t stream_min_bytes = SIZE_MAX;
};

class Collectives {
 public:
  Collectives(const SegmentConfig& config, const WaitPolicy& policy, const Kernels& kernels, WaitObserver& observer);

  void all_reduce(void* x, size_t num_elements, Dtype dtype);
  void all_reduce_residual_rmsnorm(const RmsNormCall& call);
  void all_gather(const void* input, void* output, size_t num_bytes);

  void set_thresholds(const Thresholds& thresholds);
  size_t slot_bytes() const { return segment_.slot_bytes(); }

 private:
  enum class Operation : uint8_t { kAllReduce, kAllReduceRmsNorm, kAllGather };
  enum class Algorithm : uint8_t { kOneShot, kTwoShot };
  using Flag = std::atomic<uint32_t> Control::*;

  // One rank's share of a piece, in bytes.
  struct Part {
    size_t offset;
    size_t num_bytes;
  };

  void one_shot(char* x, size_t num_bytes, Dtype dtype);
  void two_shot(char* x, size_t num_bytes, Dtype dtype);
  void one_shot_rmsnorm(const RmsNormCall& call);
  void two_shot_rmsnorm(const RmsNormCall& call);

  void begin(Operation operation, Algorithm algorithm, Dtype dtype, size_t num_bytes);
  void publish(Flag flag);
  void copy_to_slot(size_t offset, const char* from, size_t num_bytes);
  void copy_to_slot_all_but(const Part& own, const char* x, size_t num_bytes);
  void wait_for_all();
  void wait_for(int peer, Flag flag);
  void fail_if_gone(Flag flag);
  [[noreturn]] void fail(uint64_t ranks, const std::string& why) const;
  void check_calls() const;

  bool has_reached(int rank, Flag flag) const;
  uint64_t find_missing(Flag flag) const;
  uint64_t find_closed() const;
  // Where to read each rank's input at this offset: a peer's in its slot, this rank's own in place.
  void point_at(const char* x, size_t offset, const void** sources) const;
  Part part_of(int rank, size_t num_units, size_t unit_bytes) const;
  char* slot(int rank) const { return segment_.slot(rank, epoch_); }

  WaitPolicy policy_;
  WaitObserver& observer_;
  const Kernels& kernels_;
  Segment segment_;
  Thresholds thresholds_;
  uint32_t epoch_;
  Call call_{};
  bool stream_ = false;  // whether this epoch's copies into the slot stream
};

}  // namespace fastverify
