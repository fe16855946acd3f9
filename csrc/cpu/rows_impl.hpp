// Rotation of heads and arg-max of rows, as templates over one instruction set.
#pragma once

#include "forward_kernels.hpp"

namespace fastverify {
namespace {

// Both halves of a head: each element turns with its partner in the other half.
template <class V>
inline void rotate_head(float* first, const float* cos, const float* sin, size_t half) {
  float* const second = first + half;
  size_t i = 0;
  for (; i + V::kLanes <= half; i += V::kLanes) {
    const typename V::Reg a = V::load(first + i), b = V::load(second + i);
    V::store(first + i, V::fma(b, V::load(sin + i), V::multiply(a, V::load(cos + i))));
    V::store(second + i, V::fma(a, V::load(sin + half + i), V::multiply(b, V::load(cos + half + i))));
  }
  for (; i < half; ++i) {
    const float a = first[i], b = second[i];
    first[i] = __builtin_fmaf(b, sin[i], a * cos[i]);
    second[i] = __builtin_fmaf(a, sin[half + i], b * cos[half + i]);
  }
}

template <class V>
void rotate_heads(float* x, size_t row_stride, const float* cos, const float* sin, size_t num_rows, size_t num_heads,
                  size_t head_dim) {
  for (size_t row = 0; row < num_rows; ++row, x += row_stride, cos += head_dim, sin += head_dim) {
    for (size_t head = 0; head < num_heads; ++head) rotate_head<V>(x + head * head_dim, cos, sin, head_dim / 2);
  }
}

template <class V>
float largest_of(const float* values, size_t count) {
  float largest = values[0];
  size_t i = 0;
  if (count >= V::kLanes) {
    typename V::Reg total = V::load(values);
    for (i = V::kLanes; i + V::kLanes <= count; i += V::kLanes) total = V::max(V::load(values + i), total);
    float lanes[V::kLanes];
    V::store(lanes, total);
    for (float value : lanes) largest = value > largest ? value : largest;
  }
  for (; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

template <class V>
size_t first_equal(const float* values, size_t count, float wanted) {
  const typename V::Reg wanted_lanes = V::broadcast(wanted);
  size_t i = 0;
  while (i + V::kLanes <= count && !V::any_equal(V::load(values + i), wanted_lanes)) i += V::kLanes;
  while (i + 1 < count && values[i] != wanted) ++i;
  return i;
}

template <class V>
void arg_max_rows(const float* logits, size_t num_rows, size_t row_stride, size_t num_columns, size_t first_id,
                  float* best) {
  for (size_t row = 0; row < num_rows; ++row, logits += row_stride, best += 2) {
    best[0] = largest_of<V>(logits, num_columns);
    best[1] = static_cast<float>(first_id + first_equal<V>(logits, num_columns, best[0]));
  }
}

}  // namespace
}  // namespace fastverify
