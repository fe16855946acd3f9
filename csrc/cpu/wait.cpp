#include "wait.hpp"

#include <sched.h>

#include <thread>

namespace fastverify {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Arbitrary: a clock read costs about as much as two pauses, and a spin that ends 1 us late harms nobody.
constexpr uint32_t kPausesPerClockRead = 16;
// From here on the interpreter lock is free for other threads. Earlier, taking it back could cost more than the wait.
constexpr auto kLongWait = microseconds(200);
// Arbitrary: between waits inside a forward pass (well below) and waits for a person (well above).
constexpr auto kSleepAfter = milliseconds(2);
constexpr auto kSleep = microseconds(50);
// A dead rank is reported within about this long.
constexpr auto kLookInterval = milliseconds(20);

}  // namespace

WaitResult Waiter::step() {
  if (num_pauses_++ % kPausesPerClockRead != 0) {
    pause_core();
    return WaitResult::kGoOn;
  }
  const Clock::time_point now = Clock::now();
  if (!started_) {
    started_ = true;
    start_ = now;
    next_look_ = now + kLookInterval;
  }
  if (now - start_ < policy_.spin) return WaitResult::kGoOn;
  num_pauses_ = 0;  // every further step looks at the clock
  if (now - start_ > kLongWait) return step_long_wait(now);
  sched_yield();
  return WaitResult::kGoOn;
}

WaitResult Waiter::step_long_wait(Clock::time_point now) {
  if (!in_long_wait_) {
    observer_.begin_long_wait();
    in_long_wait_ = true;
  }
  if (now - start_ > policy_.timeout) return WaitResult::kTimedOut;
  if (now >= next_look_) {
    next_look_ = now + kLookInterval;
    return WaitResult::kLook;
  }
  if (now - start_ > kSleepAfter) {
    std::this_thread::sleep_for(kSleep);
  } else {
    sched_yield();
  }
  return WaitResult::kGoOn;
}

}  // namespace fastverify
