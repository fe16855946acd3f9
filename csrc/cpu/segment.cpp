#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "errors.hpp"

namespace fastverify {
namespace {

constexpr uint32_t kReadyMark = 0x66763031;  // "fv01": layout version 1
constexpr size_t kPageBytes = 4096;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

[[noreturn]] void refuse(const std::string& what, int error) {
  throw SystemRefusedError(what + ": " + std::strerror(error) + ".");
}

// Closes a descriptor at the end of its scope; the mapping does not need it.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

}  // namespace

struct Segment::Header {
  std::atomic<uint32_t> ready;     // kReadyMark once rank 0 has filled this header
  std::atomic<uint32_t> unlinked;  // 1 once the name is gone
  int32_t world_size;
  uint32_t first_epoch;
  uint64_t slot_bytes;
};

Segment::Segment(const SegmentConfig& config, const WaitPolicy& policy, WaitObserver& observer) : config_(config) {
  config_.slot_bytes = round_up(config.slot_bytes, kPageBytes);
  try {
    if (config_.rank == 0) {
      create();
    } else {
      open(policy, observer);
    }
    join(policy, observer);
  } catch (...) {
    shm_unlink(config_.name.c_str());
    unmap();
    throw;
  }
}

Segment::~Segment() {
  controls_[config_.rank].state.store(kClosed, std::memory_order_release);
  unmap();
}

size_t Segment::slots_offset() const {
  return round_up(kControlAlign + sizeof(Control) * static_cast<size_t>(config_.world_size), kPageBytes);
}

size_t Segment::total_bytes() const {
  return slots_offset() + 2 * config_.slot_bytes * static_cast<size_t>(config_.world_size);
}

void Segment::create() {
  const Descriptor file(shm_open(config_.name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (file.get() < 0) refuse("cannot create shared memory " + config_.name, errno);
  if (ftruncate(file.get(), static_cast<off_t>(total_bytes())) != 0) refuse("cannot size shared memory", errno);
  allocate(file.get(), 0, slots_offset());
  map(file.get());
  header_->world_size = config_.world_size;
  header_->first_epoch = config_.first_epoch;
  header_->slot_bytes = config_.slot_bytes;
  for (int rank = 0; rank < config_.world_size; ++rank) {
    Control& control = *new (&controls_[rank]) Control{};
    control.published.store(config_.first_epoch, std::memory_order_relaxed);
    control.reduced.store(config_.first_epoch, std::memory_order_relaxed);
  }
  header_->ready.store(kReadyMark, std::memory_order_release);
}

void Segment::open(const WaitPolicy& policy, WaitObserver& observer) {
  Waiter waiter(policy, observer);
  for (;;) {
    const Descriptor file(shm_open(config_.name.c_str(), O_RDWR, 0600));
    if (file.get() < 0 && errno != ENOENT) refuse("cannot open shared memory " + config_.name, errno);
    struct stat status {};
    // Mapping less than the full size would fault, so wait for rank 0 to have sized it.
    if (file.get() >= 0 && fstat(file.get(), &status) == 0 && status.st_size > 0) {
      if (static_cast<size_t>(status.st_size) != total_bytes()) {
        throw CallMismatchError("every rank must ask for the same shared memory, rank 0 made " +
                                std::to_string(status.st_size) + " bytes and rank " + std::to_string(config_.rank) +
                                " wants " + std::to_string(total_bytes()) + ".");
      }
      return map(file.get());
    }
    wait_step(waiter, observer, 1);
  }
}

void Segment::map(int descriptor) {
  const size_t own_offset = slots_offset() + 2 * config_.slot_bytes * static_cast<size_t>(config_.rank);
  allocate(descriptor, own_offset, 2 * config_.slot_bytes);
  void* const base = mmap(nullptr, total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) refuse("cannot map shared memory", errno);
  base_ = static_cast<char*>(base);
  header_ = reinterpret_cast<Header*>(base_);
  controls_ = reinterpret_cast<Control*>(base_ + kControlAlign);
  slots_ = base_ + slots_offset();
}

// Without this, memory that /dev/shm cannot give kills the process at the first write.
void Segment::allocate(int descriptor, size_t offset, size_t num_bytes) {
  const int error = posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(num_bytes));
  if (error != 0) {
    refuse("cannot reserve " + std::to_string(num_bytes) + " bytes in /dev/shm (a container needs --shm-size of " +
               std::to_string(total_bytes() >> 20) + " MB or more)",
           error);
  }
}

void Segment::join(const WaitPolicy& policy, WaitObserver& observer) {
  Waiter waiter(policy, observer);
  const auto wait_until = [&](auto missing_ranks) {
    while (const uint64_t missing = missing_ranks()) wait_step(waiter, observer, missing);
  };
  wait_until([&] { return header_->ready.load(std::memory_order_acquire) == kReadyMark ? 0ull : 1ull; });
  if (header_->first_epoch != config_.first_epoch) throw CallMismatchError("every rank must start at one epoch.");
  controls_[config_.rank].state.store(kJoined, std::memory_order_release);
  wait_until([&] {
    uint64_t missing = 0;
    for (int rank = 0; rank < config_.world_size; ++rank) {
      if (controls_[rank].state.load(std::memory_order_acquire) == kAbsent) missing |= 1ull << rank;
    }
    return missing;
  });
  if (config_.rank == 0) {
    shm_unlink(config_.name.c_str());
    header_->unlinked.store(1, std::memory_order_release);
  }
  wait_until([&] { return header_->unlinked.load(std::memory_order_acquire) == 1 ? 0ull : 1ull; });
}

void Segment::wait_step(Waiter& waiter, WaitObserver& observer, uint64_t missing) const {
  const WaitResult result = waiter.step();
  if (result == WaitResult::kGoOn) return;
  const uint64_t dead = result == WaitResult::kLook ? observer.find_dead_ranks() & missing : 0;
  if (dead == 0 && result == WaitResult::kLook) return;
  throw RankMissingError("rank " + std::to_string(config_.rank) + " needs " + name_ranks(dead ? dead : missing) +
                         " to map the shared memory of the group: " +
                         (dead ? "the process has ended. Look for its traceback."
                               : "it did not come in time. Create the communicator on every rank."));
}

void Segment::unmap() noexcept {
  if (base_ != nullptr) munmap(base_, total_bytes());
  base_ = nullptr;
}

std::string name_ranks(uint64_t mask) {
  std::string names;
  int count = 0;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if ((mask >> rank & 1) == 0) continue;
    names += (count++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return (count == 1 ? "rank " : "ranks ") + names;
}

}  // namespace fastverify
