// How a rank waits for another: spin, then give up the core, then sleep.
//
// Spinning stops early, since a rank that never yields starves the one it waits for when cores are shared; on free cores
// a yield returns at once and is only a slower look. No futex: the writer would need a full fence and a look at a waiter count in
// every call, to speed up only waits that are already long.
#pragma once

#include <chrono>
#include <cstdint>

namespace fastverify {

using Clock = std::chrono::steady_clock;

struct WaitPolicy {
  std::chrono::nanoseconds timeout;
  std::chrono::nanoseconds spin;
};

// What the host language wants to do during a long wait. Calls come from the waiting thread, in pairs of begin and end.
class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  virtual void begin_long_wait() = 0;
  virtual void end_long_wait() noexcept = 0;
  // Bit r of the answer says that the process of rank r has ended. Called only during a long wait. May throw.
  virtual uint64_t find_dead_ranks() = 0;
};

// kLook: time to look whether the others still live.
enum class WaitResult { kGoOn, kLook, kTimedOut };

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// One wait. `step` pauses once, for longer the longer the wait has lasted.
class Waiter {
 public:
  Waiter(const WaitPolicy& policy, WaitObserver& observer) : policy_(policy), observer_(observer) {}
  ~Waiter() {
    if (in_long_wait_) observer_.end_long_wait();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  WaitResult step();
  double waited_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  WaitResult step_long_wait(Clock::time_point now);

  const WaitPolicy& policy_;
  WaitObserver& observer_;
  Clock::time_point start_{};
  Clock::time_point next_look_{};
  uint32_t num_pauses_ = 0;
  bool started_ = false;
  bool in_long_wait_ = false;
};

}  // namespace fastverify
