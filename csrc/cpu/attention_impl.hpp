// Attention of a few rows over a cache, as templates over one instruction set.
//
// Lanes are (row, query head) pairs that share a key/value head. Each lane goes through the cache in order: scores,
// their maximum, exponentials and their sum, weighted values. A hidden row has weight exactly 0 and adds nothing, so
// a lane's bits depend on what it sees and not on the rows or masks beside it.
#pragma once

#include "forward_kernels.hpp"
#include "vector_math.hpp"

namespace fastverify {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Scores of up to kMaxLanes queries over `num_visible` cache rows; the last ones, from `first_masked`, have a mask.
struct QueryTile {
  const float* keys;
  const float* values;
  size_t row_stride, head_dim;
  size_t num_visible, first_masked;
  float* queries;  // [head_dim][lanes]
  float* scores;   // [num_visible][lanes], then the weights
  float* mask;     // [num_visible - first_masked][lanes]
  float* out;      // [head_dim][lanes]
};

// Scores of kRows neighbouring cache rows: independent sums, which hide the latency of each.
template <class V, int kRegs, int kRows>
inline void score_rows(const QueryTile& tile, size_t first) {
  constexpr size_t kTileLanes = kRegs * V::kLanes;
  typename V::Reg sums[kRows][kRegs];
  for (int row = 0; row < kRows; ++row) {
    for (int reg = 0; reg < kRegs; ++reg) sums[row][reg] = V::zero();
  }
  const float* const keys = tile.keys + first * tile.row_stride;
  for (size_t i = 0; i < tile.head_dim; ++i) {
    typename V::Reg queries[kRegs];
    for (int reg = 0; reg < kRegs; ++reg) queries[reg] = V::load(tile.queries + i * kTileLanes + reg * V::kLanes);
    for (int row = 0; row < kRows; ++row) {
      const typename V::Reg key = V::broadcast(keys[row * tile.row_stride + i]);
      for (int reg = 0; reg < kRegs; ++reg) sums[row][reg] = V::fma(key, queries[reg], sums[row][reg]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int reg = 0; reg < kRegs; ++reg) {
      V::store(tile.scores + (first + row) * kTileLanes + reg * V::kLanes, sums[row][reg]);
    }
  }
}

template <class V, int kRegs>
void score_all(const QueryTile& tile) {
  constexpr size_t kTileLanes = kRegs * V::kLanes;
  constexpr int kRows = V::kRegsPerRow * 2 / kRegs;
  size_t row = 0;
  for (; row + kRows <= tile.num_visible; row += kRows) score_rows<V, kRegs, kRows>(tile, row);
  for (; row < tile.num_visible; ++row) score_rows<V, kRegs, 1>(tile, row);
  float* const masked = tile.scores + tile.first_masked * kTileLanes;
  const size_t num_masked = (tile.num_visible - tile.first_masked) * kTileLanes;
  for (size_t i = 0; i < num_masked; i += V::kLanes) {
    V::store(masked + i, V::add(V::load(masked + i), V::load(tile.mask + i)));
  }
}

// Scores become exp(score - largest); returns the sums through `totals`.
template <class V, int kRegs>
void exponentiate(const QueryTile& tile, typename V::Reg* totals) {
  constexpr size_t kTileLanes = kRegs * V::kLanes;
  typename V::Reg largest[kRegs];
  for (int reg = 0; reg < kRegs; ++reg) {
    largest[reg] = V::broadcast(kMinusInfinity);
    totals[reg] = V::zero();
  }
  const float* const end = tile.scores + tile.num_visible * kTileLanes;
  for (const float* at = tile.scores; at < end; at += kTileLanes) {
    for (int reg = 0; reg < kRegs; ++reg) largest[reg] = V::max(V::load(at + reg * V::kLanes), largest[reg]);
  }
  for (int reg = 0; reg < kRegs; ++reg) largest[reg] = V::multiply(largest[reg], V::broadcast(-1.0f));
  for (float* at = tile.scores; at < end; at += kTileLanes) {
    for (int reg = 0; reg < kRegs; ++reg) {
      const typename V::Reg weight = exp<V>(V::add(V::load(at + reg * V::kLanes), largest[reg]));
      V::store(at + reg * V::kLanes, weight);
      totals[reg] = V::add(totals[reg], weight);
    }
  }
}

// Elements first..first + kDims of the output.
template <class V, int kRegs, int kDims>
inline void weigh_values(const QueryTile& tile, const typename V::Reg* totals, size_t first) {
  constexpr size_t kTileLanes = kRegs * V::kLanes;
  typename V::Reg sums[kDims][kRegs];
  for (int dim = 0; dim < kDims; ++dim) {
    for (int reg = 0; reg < kRegs; ++reg) sums[dim][reg] = V::zero();
  }
  const float* value = tile.values + first;
  const float* weight = tile.scores;
  for (size_t row = 0; row < tile.num_visible; ++row, value += tile.row_stride, weight += kTileLanes) {
    typename V::Reg weights[kRegs];
    for (int reg = 0; reg < kRegs; ++reg) weights[reg] = V::load(weight + reg * V::kLanes);
    for (int dim = 0; dim < kDims; ++dim) {
      const typename V::Reg element = V::broadcast(value[dim]);
      for (int reg = 0; reg < kRegs; ++reg) sums[dim][reg] = V::fma(element, weights[reg], sums[dim][reg]);
    }
  }
  for (int dim = 0; dim < kDims; ++dim) {
    for (int reg = 0; reg < kRegs; ++reg) {
      V::store(tile.out + (first + dim) * kTileLanes + reg * V::kLanes, V::divide(sums[dim][reg], totals[reg]));
    }
  }
}

template <class V, int kRegs>
void attend_tile(const QueryTile& tile) {
  constexpr int kDims = V::kRegsPerRow * 4 / kRegs;
  typename V::Reg totals[kRegs];
  score_all<V, kRegs>(tile);
  exponentiate<V, kRegs>(tile, totals);
  size_t dim = 0;
  for (; dim + kDims <= tile.head_dim; dim += kDims) weigh_values<V, kRegs, kDims>(tile, totals, dim);
  for (; dim < tile.head_dim; ++dim) weigh_values<V, kRegs, 1>(tile, totals, dim);
}

// The queries of one key/value head: query i is row i / group, head i % group of the group.
struct QueryGroup {
  const CachedRequest& request;
  const AttentionShape& shape;
  const PackedRows& queries;
  size_t kv_head, group_size;

  size_t size() const { return request.num_rows * group_size; }
  size_t row(size_t query) const { return query / group_size; }
  size_t head(size_t query) const { return kv_head * group_size + query % group_size; }
};

// Lanes past the last query repeat it.
inline void load_queries(const QueryGroup& group, size_t first, size_t num_lanes, float* queries) {
  const size_t head_dim = group.shape.head_dim;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head_dim));
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    const size_t query = first + lane < group.size() ? first + lane : group.size() - 1;
    const float* const from = group.queries.data + (group.request.first_row + group.row(query)) * group.queries.row_stride +
                              group.head(query) * head_dim;
    for (size_t i = 0; i < head_dim; ++i) queries[i * num_lanes + lane] = from[i] * scale;
  }
}

inline void fill_mask(const QueryGroup& group, size_t first, size_t num_lanes, const QueryTile& tile) {
  const CachedRequest& request = group.request;
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    const size_t query = first + lane < group.size() ? first + lane : group.size() - 1;
    const size_t row = group.row(query);
    for (size_t i = 0; i < tile.num_visible - tile.first_masked; ++i) {
      const float causal = tile.first_masked + i <= request.start + row ? 0.0f : kMinusInfinity;
      tile.mask[i * num_lanes + lane] =
          request.tail_mask == nullptr ? causal : request.tail_mask[row * request.tail_size + i];
    }
  }
}

inline void store_outputs(const QueryGroup& group, size_t first, size_t num_lanes, const QueryTile& tile, float* out) {
  const size_t head_dim = group.shape.head_dim;
  for (size_t lane = 0; lane < num_lanes && first + lane < group.size(); ++lane) {
    const size_t query = first + lane;
    float* const to =
        out + ((group.request.first_row + group.row(query)) * group.shape.num_heads + group.head(query)) * head_dim;
    for (size_t i = 0; i < head_dim; ++i) to[i] = tile.out[i * num_lanes + lane];
  }
}

template <class V, int kRegs>
void attend_queries(const QueryGroup& group, size_t first, const LayerCache& cache, float* scratch, float* out) {
  constexpr size_t kTileLanes = kRegs * V::kLanes;
  const CachedRequest& request = group.request;
  const size_t head_dim = group.shape.head_dim, row_stride = group.shape.num_kv_heads * head_dim;
  const size_t last = first + kTileLanes < group.size() ? first + kTileLanes - 1 : group.size() - 1;
  const size_t offset = request.cache_row * row_stride + group.kv_head * head_dim;
  QueryTile tile;
  tile.keys = cache.keys + offset;
  tile.values = cache.values + offset;
  tile.row_stride = row_stride;
  tile.head_dim = head_dim;
  if (request.tail_mask == nullptr) {
    tile.num_visible = request.start + group.row(last) + 1;
    tile.first_masked = request.start + group.row(first) + 1;
  } else {
    tile.num_visible = request.start + request.num_rows;
    tile.first_masked = tile.num_visible - request.tail_size;
  }
  tile.queries = scratch;
  tile.out = tile.queries + head_dim * kTileLanes;
  tile.scores = tile.out + head_dim * kTileLanes;
  tile.mask = tile.scores + tile.num_visible * kTileLanes;
  load_queries(group, first, kTileLanes, tile.queries);
  fill_mask(group, first, kTileLanes, tile);
  attend_tile<V, kRegs>(tile);
  store_outputs(group, first, kTileLanes, tile, out);
}

template <class V>
void attend_request(const CachedRequest& request, const AttentionShape& shape, const PackedRows& queries,
                    const LayerCache& cache, float* scratch, float* out) {
  for (size_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const QueryGroup group{request, shape, queries, kv_head, shape.num_heads / shape.num_kv_heads};
    size_t first = 0;
    while (first < group.size()) {
      if (group.size() - first > V::kLanes) {
        attend_queries<V, 2>(group, first, cache, scratch, out);
        first += 2 * V::kLanes;
      } else {
        attend_queries<V, 1>(group, first, cache, scratch, out);
        first += V::kLanes;
      }
    }
  }
}

}  // namespace
}  // namespace fastverify
