// Rotation of heads and arg-max of rows, as templates over one instruction set.
#pragma once

#include "forward_kernels.hpp"

namespace fastverify {
namespace {

// out = x * cos + other * sin, where `other` is the half of the head that each element turns with.
template <class V>
inline void rotate_half(const float* x, const float* other, const float* cos, const float* sin, size_t size,
                        float* out) {
  size_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) {
    const typename V::Reg scaled = V::multiply(V::load(x + i), V::load(cos + i));
    V::store(out + i, V::fma(V::load(other + i), V::load(sin + i), scaled));
  }
  for (; i < size; ++i) out[i] = __builtin_fmaf(other[i], sin[i], x[i] * cos[i]);
}

template <class V>
void rotate_heads(const PackedRows& x, const float* cos, const float* sin, size_t num_rows, size_t num_heads,
                  size_t head_dim, float* out) {
  const size_t half = head_dim / 2;
  for (size_t row = 0; row < num_rows; ++row, cos += head_dim, sin += head_dim) {
    const float* head = x.data + row * x.row_stride;
    for (size_t h = 0; h < num_heads; ++h, head += head_dim, out += head_dim) {
      rotate_half<V>(head, head + half, cos, sin, half, out);
      rotate_half<V>(head + half, head, cos + half, sin + half, half, out + half);
    }
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
