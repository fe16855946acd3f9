#include "collectives.hpp"

#include <algorithm>
#include <cstring>

#include "errors.hpp"

namespace fastverify {
namespace {

constexpr size_t kPartAlign = 64;  // a cache line: no two ranks write one

uint32_t encode_kind(uint8_t operation, uint8_t algorithm, Dtype dtype) {
  return static_cast<uint32_t>(operation) << 16 | static_cast<uint32_t>(algorithm) << 8 | static_cast<uint32_t>(dtype);
}

std::string describe(const Call& call) {
  static const char* const kOperations[] = {"all_reduce", "all_reduce_residual_rmsnorm", "all_gather"};
  static const char* const kAlgorithms[] = {"one-shot", "two-shot"};
  static const char* const kDtypes[] = {"float32", "bfloat16", "float16"};
  const uint32_t operation = call.kind >> 16;
  std::string text = kOperations[operation];
  text += " of " + std::to_string(call.num_bytes) + " bytes";
  if (operation != 2) {
    text += std::string(" ") + kDtypes[call.kind & 0xff] + ", " + kAlgorithms[call.kind >> 8 & 0xff];
  }
  return text;
}

}  // namespace

Collectives::Collectives(const SegmentConfig& config, const WaitPolicy& policy, const Kernels& kernels,
                         WaitObserver& observer)
    : policy_(policy),
      observer_(observer),
      kernels_(kernels),
      segment_(config, policy_, observer),
      epoch_(config.first_epoch) {}

void Collectives::set_thresholds(const Thresholds& thresholds) {
  thresholds_ = thresholds;
  if (kernels_.copy_streamed == nullptr) thresholds_.stream_min_bytes = SIZE_MAX;
}

void Collectives::all_reduce(void* x, size_t num_elements, Dtype dtype) {
  char* const bytes = static_cast<char*>(x);
  const size_t total = num_elements * kItemBytes[static_cast<int>(dtype)];
  for (size_t offset = 0; offset < total; offset += segment_.slot_bytes()) {
    const size_t num_bytes = std::min(segment_.slot_bytes(), total - offset);
    if (num_bytes >= thresholds_.two_shot_min_bytes) {
      two_shot(bytes + offset, num_bytes, dtype);
    } else {
      one_shot(bytes + offset, num_bytes, dtype);
    }
  }
}

void Collectives::all_reduce_residual_rmsnorm(const RmsNormCall& call) {
  const size_t row_bytes = call.hidden_size * kItemBytes[static_cast<int>(call.dtype)];
  const size_t rows_per_piece = segment_.slot_bytes() / row_bytes;
  if (rows_per_piece == 0) throw SystemRefusedError("a row must fit a slot of the shared memory.");
  for (size_t row = 0; row < call.rows; row += rows_per_piece) {
    RmsNormCall piece = call;
    piece.x = static_cast<char*>(call.x) + row * row_bytes;
    piece.residual = static_cast<char*>(call.residual) + row * row_bytes;
    piece.rows = std::min(rows_per_piece, call.rows - row);
    const bool rows_for_all = piece.rows >= static_cast<size_t>(segment_.world_size());
    if (rows_for_all && piece.rows * row_bytes >= thresholds_.two_shot_min_bytes) {
      two_shot_rmsnorm(piece);
    } else {
      one_shot_rmsnorm(piece);
    }
  }
}

void Collectives::all_gather(const void* input, void* output, size_t num_bytes) {
  for (size_t offset = 0; offset < num_bytes; offset += segment_.slot_bytes()) {
    const size_t piece_bytes = std::min(segment_.slot_bytes(), num_bytes - offset);
    begin(Operation::kAllGather, Algorithm::kOneShot, Dtype::kFloat32, piece_bytes);
    copy_to_slot(0, static_cast<const char*>(input) + offset, piece_bytes);
    publish(&Control::published);
    wait_for_all();
    for (int rank = 0; rank < segment_.world_size(); ++rank) {
      char* const to = static_cast<char*>(output) + static_cast<size_t>(rank) * num_bytes + offset;
      std::memcpy(to, slot(rank), piece_bytes);
    }
  }
}

void Collectives::one_shot(char* x, size_t num_bytes, Dtype dtype) {
  begin(Operation::kAllReduce, Algorithm::kOneShot, dtype, num_bytes);
  copy_to_slot(0, x, num_bytes);
  publish(&Control::published);
  wait_for_all();
  const void* sources[kMaxRanks];
  point_at(x, 0, sources);
  kernels_[dtype].sum(x, sources, segment_.world_size(), num_bytes / kItemBytes[static_cast<int>(dtype)]);
}

void Collectives::two_shot(char* x, size_t num_bytes, Dtype dtype) {
  begin(Operation::kAllReduce, Algorithm::kTwoShot, dtype, num_bytes);
  const int self = segment_.rank();
  // Units of a cache line; the last one may be short.
  const size_t num_units = (num_bytes + kPartAlign - 1) / kPartAlign;
  const auto part_within = [&](int rank) {
    Part part = part_of(rank, num_units, kPartAlign);
    part.num_bytes = std::min(part.num_bytes, num_bytes - std::min(num_bytes, part.offset));
    return part;
  };
  const Part own = part_within(self);
  copy_to_slot_all_but(own, x, num_bytes);
  publish(&Control::published);
  wait_for_all();
  const void* sources[kMaxRanks];
  point_at(x, own.offset, sources);
  const size_t own_elements = own.num_bytes / kItemBytes[static_cast<int>(dtype)];
  kernels_[dtype].sum(x + own.offset, sources, segment_.world_size(), own_elements);
  copy_to_slot(own.offset, x + own.offset, own.num_bytes);
  publish(&Control::reduced);
  for (int step = 1; step < segment_.world_size(); ++step) {
    const int peer = (self + step) % segment_.world_size();
    const Part part = part_within(peer);
    wait_for(peer, &Control::reduced);
    if (part.num_bytes != 0) std::memcpy(x + part.offset, slot(peer) + part.offset, part.num_bytes);
  }
}

void Collectives::one_shot_rmsnorm(const RmsNormCall& call) {
  const size_t row_bytes = call.hidden_size * kItemBytes[static_cast<int>(call.dtype)];
  char* const x = static_cast<char*>(call.x);
  begin(Operation::kAllReduceRmsNorm, Algorithm::kOneShot, call.dtype, call.rows * row_bytes);
  copy_to_slot(0, x, call.rows * row_bytes);
  publish(&Control::published);
  wait_for_all();
  const void* sources[kMaxRanks];
  for (size_t offset = 0; offset < call.rows * row_bytes; offset += row_bytes) {
    char* const residual = static_cast<char*>(call.residual) + offset;
    point_at(x, offset, sources);
    kernels_[call.dtype].add_sum(residual, sources, segment_.world_size(), call.hidden_size);
    kernels_[call.dtype].rms_norm(x + offset, residual, call.weight, call.eps, call.hidden_size);
  }
}

// The parts are whole rows. What is shared in the second round is the new residual; each rank norms all rows itself,
// its own while the peers still sum.
void Collectives::two_shot_rmsnorm(const RmsNormCall& call) {
  const size_t row_bytes = call.hidden_size * kItemBytes[static_cast<int>(call.dtype)];
  const int self = segment_.rank();
  char* const x = static_cast<char*>(call.x);
  char* const residual = static_cast<char*>(call.residual);
  const DtypeKernels& kernels = kernels_[call.dtype];
  const auto norm_rows = [&](const Part& part) {
    for (size_t offset = part.offset; offset < part.offset + part.num_bytes; offset += row_bytes) {
      kernels.rms_norm(x + offset, residual + offset, call.weight, call.eps, call.hidden_size);
    }
  };
  begin(Operation::kAllReduceRmsNorm, Algorithm::kTwoShot, call.dtype, call.rows * row_bytes);
  const Part own = part_of(self, call.rows, row_bytes);
  copy_to_slot_all_but(own, x, call.rows * row_bytes);
  publish(&Control::published);
  wait_for_all();
  const void* sources[kMaxRanks];
  for (size_t offset = own.offset; offset < own.offset + own.num_bytes; offset += row_bytes) {
    point_at(x, offset, sources);
    kernels.add_sum(residual + offset, sources, segment_.world_size(), call.hidden_size);
  }
  copy_to_slot(own.offset, residual + own.offset, own.num_bytes);
  publish(&Control::reduced);
  norm_rows(own);
  for (int step = 1; step < segment_.world_size(); ++step) {
    const int peer = (self + step) % segment_.world_size();
    const Part part = part_of(peer, call.rows, row_bytes);
    wait_for(peer, &Control::reduced);
    if (part.num_bytes != 0) std::memcpy(residual + part.offset, slot(peer) + part.offset, part.num_bytes);
    norm_rows(part);
  }
}

void Collectives::begin(Operation operation, Algorithm algorithm, Dtype dtype, size_t num_bytes) {
  ++epoch_;
  stream_ = num_bytes >= thresholds_.stream_min_bytes;
  call_ = {num_bytes, encode_kind(static_cast<uint8_t>(operation), static_cast<uint8_t>(algorithm), dtype)};
  segment_.control(segment_.rank()).calls[epoch_ % 2] = call_;
}

void Collectives::publish(Flag flag) {
  (segment_.control(segment_.rank()).*flag).store(epoch_, std::memory_order_release);
}

void Collectives::copy_to_slot(size_t offset, const char* from, size_t num_bytes) {
  char* const to = slot(segment_.rank()) + offset;
  if (stream_) {
    kernels_.copy_streamed(to, from, num_bytes);
  } else {
    std::memcpy(to, from, num_bytes);
  }
}

// In TWO_SHOT no peer reads this rank's own part, so it is not copied.
void Collectives::copy_to_slot_all_but(const Part& own, const char* x, size_t num_bytes) {
  const size_t before = std::min(own.offset, num_bytes);
  const size_t after = std::min(own.offset + own.num_bytes, num_bytes);
  copy_to_slot(0, x, before);
  copy_to_slot(after, x + after, num_bytes - after);
}

void Collectives::wait_for_all() {
  for (int peer = 0; peer < segment_.world_size(); ++peer) wait_for(peer, &Control::published);
  check_calls();
}

void Collectives::wait_for(int peer, Flag flag) {
  if (has_reached(peer, flag)) return;
  Waiter waiter(policy_, observer_);
  while (!has_reached(peer, flag)) {
    const WaitResult result = waiter.step();
    if (result == WaitResult::kLook) fail_if_gone(flag);
    if (result == WaitResult::kTimedOut && !has_reached(peer, flag)) {
      fail(find_missing(flag), "it did not arrive within " + std::to_string(waiter.waited_s()) +
                                   " s. Look at what it does, or raise FASTVERIFY_COMM_TIMEOUT_S.");
    }
  }
}

void Collectives::fail_if_gone(Flag flag) {
  const uint64_t dead = observer_.find_dead_ranks();
  const uint64_t closed = find_closed();
  // Looked at last: a rank that arrived and then ended is not missing.
  const uint64_t missing = find_missing(flag);
  if ((dead & missing) != 0) fail(dead & missing, "the process has ended. Look for its traceback.");
  if ((closed & missing) != 0) fail(closed & missing, "it has closed its communicator.");
}

void Collectives::fail(uint64_t ranks, const std::string& why) const {
  throw RankMissingError("rank " + std::to_string(segment_.rank()) + " needs " + name_ranks(ranks) + " in " +
                         describe(call_) + ": " + why);
}

void Collectives::check_calls() const {
  for (int peer = 0; peer < segment_.world_size(); ++peer) {
    const Call& other = segment_.control(peer).calls[epoch_ % 2];
    if (other.kind == call_.kind && other.num_bytes == call_.num_bytes) continue;
    throw CallMismatchError("every rank must make the same calls in the same order, rank " +
                            std::to_string(segment_.rank()) + " is in " + describe(call_) + " and rank " +
                            std::to_string(peer) + " in " + describe(other) + ".");
  }
}

bool Collectives::has_reached(int rank, Flag flag) const {
  const uint32_t reached = (segment_.control(rank).*flag).load(std::memory_order_acquire);
  return static_cast<int32_t>(reached - epoch_) >= 0;
}

uint64_t Collectives::find_missing(Flag flag) const {
  uint64_t missing = 0;
  for (int rank = 0; rank < segment_.world_size(); ++rank) {
    if (!has_reached(rank, flag)) missing |= 1ull << rank;
  }
  return missing;
}

uint64_t Collectives::find_closed() const {
  uint64_t closed = 0;
  for (int rank = 0; rank < segment_.world_size(); ++rank) {
    if (segment_.control(rank).state.load(std::memory_order_acquire) == kClosed) closed |= 1ull << rank;
  }
  return closed;
}

void Collectives::point_at(const char* x, size_t offset, const void** sources) const {
  for (int rank = 0; rank < segment_.world_size(); ++rank) {
    sources[rank] = (rank == segment_.rank() ? x : slot(rank)) + offset;
  }
}

Collectives::Part Collectives::part_of(int rank, size_t num_units, size_t unit_bytes) const {
  const size_t index = static_cast<size_t>(rank);
  const size_t count = static_cast<size_t>(segment_.world_size());
  const size_t extra = num_units % count;
  const size_t first = num_units / count * index + std::min(index, extra);
  return {first * unit_bytes, (num_units / count + (index < extra ? 1 : 0)) * unit_bytes};
}

}  // namespace fastverify
