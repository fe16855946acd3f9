// The kernels as templates over one instruction set; included by one file per set.
//
// A set `V` gives: Reg, kLanes, load(const T*), store(T*, Reg), add, multiply, broadcast, zero, sum_lanes.
// Unnamed namespace, and no standard library templates, for the reason given in floats.hpp.
#pragma once

#include "kernels.hpp"

namespace fastverify {
namespace {

// kNumSources > 0 lets the compiler keep the pointers in registers; 0 means any number.
template <class V, class T, int kNumSources, bool kAddToDst>
void sum_sources(T* dst, const T* const* sources, int num_sources, size_t num_elements) {
  const int count = kNumSources > 0 ? kNumSources : num_sources;
  const T* local[kNumSources > 0 ? kNumSources : 1];
  if (kNumSources > 0) {
    for (int s = 0; s < kNumSources; ++s) local[s] = sources[s];
  }
  const T* const* const pointers = kNumSources > 0 ? local : sources;
  size_t i = 0;
  for (; i + V::kLanes <= num_elements; i += V::kLanes) {
    typename V::Reg total = V::load(pointers[0] + i);
    for (int s = 1; s < count; ++s) total = V::add(total, V::load(pointers[s] + i));
    if (kAddToDst) total = V::add(V::load(dst + i), total);
    V::store(dst + i, total);
  }
  for (; i < num_elements; ++i) {
    float total = to_float(pointers[0][i]);
    for (int s = 1; s < count; ++s) total += to_float(pointers[s][i]);
    if (kAddToDst) total = to_float(dst[i]) + total;
    from_float(total, dst + i);
  }
}

template <class V, class T, bool kAddToDst>
void sum_any(void* dst, const void* const* sources, int num_sources, size_t num_elements) {
  T* const typed_dst = static_cast<T*>(dst);
  const T* const* const typed_sources = reinterpret_cast<const T* const*>(sources);
  switch (num_sources) {
    case 2: return sum_sources<V, T, 2, kAddToDst>(typed_dst, typed_sources, num_sources, num_elements);
    case 4: return sum_sources<V, T, 4, kAddToDst>(typed_dst, typed_sources, num_sources, num_elements);
    case 8: return sum_sources<V, T, 8, kAddToDst>(typed_dst, typed_sources, num_sources, num_elements);
    default: return sum_sources<V, T, 0, kAddToDst>(typed_dst, typed_sources, num_sources, num_elements);
  }
}

// Four independent totals hide the latency of the addition and halve the rounding error twice.
template <class V, class T>
float sum_of_squares(const T* row, size_t num_elements) {
  typename V::Reg totals[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  size_t i = 0;
  for (; i + 4 * V::kLanes <= num_elements; i += 4 * V::kLanes) {
    for (size_t t = 0; t < 4; ++t) {
      const typename V::Reg value = V::load(row + i + t * V::kLanes);
      totals[t] = V::add(totals[t], V::multiply(value, value));
    }
  }
  float tail = 0.0f;
  for (; i < num_elements; ++i) tail += to_float(row[i]) * to_float(row[i]);
  return V::sum_lanes(V::add(V::add(totals[0], totals[1]), V::add(totals[2], totals[3]))) + tail;
}

template <class T>
inline void scale_one(T* out, T value, T weight, float scale) {
  T normed;
  from_float(to_float(value) * scale, &normed);
  from_float(to_float(normed) * to_float(weight), out);
}

template <class V, class T>
void rms_norm_row(void* out, const void* row, const void* weight, float eps, size_t hidden_size) {
  T* const typed_out = static_cast<T*>(out);
  const T* const typed_row = static_cast<const T*>(row);
  const T* const typed_weight = static_cast<const T*>(weight);
  const float mean_square = sum_of_squares<V>(typed_row, hidden_size) / static_cast<float>(hidden_size);
  const float scale = 1.0f / __builtin_sqrtf(mean_square + eps);
  const typename V::Reg scales = V::broadcast(scale);
  size_t i = 0;
  for (; i + V::kLanes <= hidden_size; i += V::kLanes) {
    // Through T, because the reference rounds before it multiplies by the weight.
    T normed[V::kLanes];
    V::store(normed, V::multiply(V::load(typed_row + i), scales));
    V::store(typed_out + i, V::multiply(V::load(normed), V::load(typed_weight + i)));
  }
  for (; i < hidden_size; ++i) scale_one(typed_out + i, typed_row[i], typed_weight[i], scale);
}

// For sets that give kStreamBytes, stream(char* aligned, const char*) and stream_fence(). Streaming stores are not
// ordered with later stores, not even on x86, hence the fence.
template <class V>
void stream_copy(void* dst, const void* src, size_t num_bytes) {
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  const size_t misaligned = (V::kStreamBytes - reinterpret_cast<uintptr_t>(to) % V::kStreamBytes) % V::kStreamBytes;
  const size_t head = misaligned < num_bytes ? misaligned : num_bytes;
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + V::kStreamBytes <= num_bytes; i += V::kStreamBytes) V::stream(to + i, from + i);
  std::memcpy(to + i, from + i, num_bytes - i);
  V::stream_fence();
}

template <class V, class T>
constexpr DtypeKernels kernels_for() {
  return {sum_any<V, T, false>, sum_any<V, T, true>, rms_norm_row<V, T>};
}

template <class V>
constexpr Kernels make_kernels(const char* name, void (*copy_streamed)(void*, const void*, size_t) = nullptr) {
  return {name, copy_streamed, {kernels_for<V, float>(), kernels_for<V, Bfloat16>(), kernels_for<V, Float16>()}};
}

}  // namespace
}  // namespace fastverify
