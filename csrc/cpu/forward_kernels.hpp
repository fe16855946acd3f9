// The arithmetic of a forward pass in float32, compiled once per instruction set and chosen at run time.
//
// What is summed is summed per output in one fixed order, with vector lanes across outputs and never across the terms
// of a sum. So a row's result has the same bits whatever other rows share the call, and on every instruction set.
// Only the norm, which the collectives share (kernels.hpp), depends on the number of lanes.
#pragma once

#include "kernels.hpp"

namespace fastverify {

// Outputs that are computed together. A gated block holds half as many gates, then their up-projections.
constexpr size_t kBlock = 64;

// A weight matrix as [blocks][inputs][kBlock], padded with zeros; see pack_weight.
struct PackedWeight {
  const void* values;
  const float* bias;  // [blocks][kBlock]
  size_t num_inputs;
  size_t num_blocks;
  size_t num_outputs;  // of the call: half the weight's if gated
  bool is_bfloat16;
  bool is_gated;
};

// New rows of one request, packed among those of others: `num_rows` of them from packed row `first_row` on.
struct CachedRequest {
  size_t first_row, num_rows;
  size_t start;            // rows cached before
  size_t cache_row;        // cache row of the request's position 0
  const float* tail_mask;  // [num_rows][tail_size], 0 or -inf for the newest rows; null: causal
  size_t tail_size;
};

struct AttentionShape {
  size_t num_heads, num_kv_heads, head_dim;
};

// `row_stride` elements lie between packed rows; a row's heads are contiguous.
struct PackedRows {
  const float* data;
  size_t row_stride;
};

// Keys and values of one layer: [rows][kv heads][head size].
struct LayerCache {
  float* keys;
  float* values;
};

struct ForwardKernels {
  const char* name;
  size_t num_lanes;
  // out[rows][num_outputs] = x[rows][num_inputs] * weight (+ bias); of a gated weight silu(gate) * up.
  void (*linear)(const PackedWeight& weight, const float* x, size_t num_rows, float* out);
  // The first num_heads heads of every row turned in place by the row's angles: cos, signed sin [rows][head_dim].
  void (*rotate)(float* x, size_t row_stride, const float* cos, const float* sin, size_t num_rows, size_t num_heads,
                 size_t head_dim);
  // Attention of one request over the cache that already holds its new rows; out is [packed rows][heads][head size].
  void (*attend)(const CachedRequest& request, const AttentionShape& shape, const PackedRows& queries,
                 const LayerCache& cache, float* scratch, float* out);
  // Largest value of each row and its index plus first_id, the lowest of equals: best[rows][2].
  void (*arg_max)(const float* logits, size_t num_rows, size_t row_stride, size_t num_columns, size_t first_id,
                  float* best);
};

// Floats that `attend` needs when a request sees up to `num_visible` rows.
size_t attention_scratch_size(size_t num_visible, size_t head_dim);

// Each is null where the set was not compiled in or this processor lacks it.
const ForwardKernels* avx2_forward_kernels();
const ForwardKernels* avx512_forward_kernels();
const ForwardKernels* neon_forward_kernels();

// As find_kernels; there is no plain set, which would be slower than any library.
const ForwardKernels* find_forward_kernels(const char* name);

}  // namespace fastverify
