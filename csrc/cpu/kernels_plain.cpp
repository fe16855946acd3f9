// No vector instructions asked for; eight lanes that a compiler may turn into what the baseline processor has.
#include "kernels_impl.hpp"

namespace fastverify {
namespace {

struct Plain {
  static constexpr size_t kLanes = 8;
  struct Reg {
    float lanes[kLanes];
  };

  template <class T>
  static Reg load(const T* from) {
    Reg out;
    for (size_t i = 0; i < kLanes; ++i) out.lanes[i] = to_float(from[i]);
    return out;
  }
  template <class T>
  static void store(T* to, Reg value) {
    for (size_t i = 0; i < kLanes; ++i) from_float(value.lanes[i], to + i);
  }
  static Reg add(Reg a, Reg b) {
    for (size_t i = 0; i < kLanes; ++i) a.lanes[i] += b.lanes[i];
    return a;
  }
  static Reg multiply(Reg a, Reg b) {
    for (size_t i = 0; i < kLanes; ++i) a.lanes[i] *= b.lanes[i];
    return a;
  }
  static Reg broadcast(float value) {
    Reg out;
    for (size_t i = 0; i < kLanes; ++i) out.lanes[i] = value;
    return out;
  }
  static Reg zero() { return broadcast(0.0f); }
  static float sum_lanes(Reg value) {
    float total = 0.0f;
    for (size_t i = 0; i < kLanes; ++i) total += value.lanes[i];
    return total;
  }
};

constexpr Kernels kPlain = make_kernels<Plain>("plain");

}  // namespace

const Kernels* plain_kernels() { return &kPlain; }

}  // namespace fastverify
