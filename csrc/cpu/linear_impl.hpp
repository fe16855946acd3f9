// Products of a packed weight with few or many rows, as templates over one instruction set.
//
// Lanes are outputs and every lane adds its products in the order of the inputs, so a row does not depend on its tile.
// A block's weights are read in one sweep: bandwidth decides the time of a few rows.
#pragma once

#include "forward_kernels.hpp"
#include "vector_math.hpp"

namespace fastverify {
namespace {

// With 2 to 4 registers per row: up to 24 sums, which 32 registers hold; 12 where there are 16.
constexpr size_t kMaxTileRows = 6;

struct RowTile {
  const float* x;
  size_t num_inputs;
  float sums[kMaxTileRows][kBlock];
};

// Outputs first..first + kRegs * lanes of one block.
template <class V, class W, int kRows, int kRegs>
inline void multiply_strip(const W* weights, const float* bias, size_t first, RowTile& tile) {
  static_assert(kRegs % 2 == 0, "weights are loaded in pairs of registers");
  typename V::Reg sums[kRows][kRegs];
  for (int row = 0; row < kRows; ++row) {
    for (int reg = 0; reg < kRegs; ++reg) sums[row][reg] = V::load(bias + first + reg * V::kLanes);
  }
  const W* from = weights + first;
  const float* const x = tile.x;
  const size_t num_inputs = tile.num_inputs;
  for (size_t k = 0; k < num_inputs; ++k, from += kBlock) {
    typename V::Reg loaded[kRegs];
    for (int reg = 0; reg < kRegs; reg += 2) V::load_pair(from + reg * V::kLanes, &loaded[reg], &loaded[reg + 1]);
    for (int row = 0; row < kRows; ++row) {
      const typename V::Reg input = V::broadcast(x[row * num_inputs + k]);
      for (int reg = 0; reg < kRegs; ++reg) sums[row][reg] = V::fma(input, loaded[reg], sums[row][reg]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int reg = 0; reg < kRegs; ++reg) V::store(tile.sums[row] + first + reg * V::kLanes, sums[row][reg]);
  }
}

template <class V, class W, int kRows>
void multiply_block(const W* weights, const float* bias, RowTile& tile) {
  constexpr int kRegs = kRows <= 2 ? 4 : V::kRegsPerRow;
  constexpr size_t kStrip = kRegs * V::kLanes;
  static_assert(kBlock % kStrip == 0);
  for (size_t first = 0; first < kBlock; first += kStrip) {
    multiply_strip<V, W, kRows, kRegs>(weights, bias, first, tile);
  }
}

template <class V, class W>
void multiply_rows(size_t num_rows, const W* weights, const float* bias, RowTile& tile) {
  switch (num_rows) {
    case 1: return multiply_block<V, W, 1>(weights, bias, tile);
    case 2: return multiply_block<V, W, 2>(weights, bias, tile);
    case 3: return multiply_block<V, W, 3>(weights, bias, tile);
    case 4: return multiply_block<V, W, 4>(weights, bias, tile);
    case 5: return multiply_block<V, W, 5>(weights, bias, tile);
    default: return multiply_block<V, W, 6>(weights, bias, tile);
  }
}

template <class V>
void apply_gates(float* sums) {
  for (size_t i = 0; i < kBlock / 2; i += V::kLanes) {
    V::store(sums + i, V::multiply(silu<V>(V::load(sums + i)), V::load(sums + kBlock / 2 + i)));
  }
}

template <class V, class W>
void multiply_packed(const PackedWeight& weight, const float* x, size_t num_rows, float* out) {
  // Tiles of nearly equal height: a last tile of one row would read the weights for little.
  const size_t num_tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
  const size_t width = weight.is_gated ? kBlock / 2 : kBlock;
  RowTile tile;
  tile.num_inputs = weight.num_inputs;
  for (size_t block = 0; block < weight.num_blocks; ++block) {
    const W* const values = static_cast<const W*>(weight.values) + block * weight.num_inputs * kBlock;
    const size_t first = block * width;
    const size_t count = weight.num_outputs - first < width ? weight.num_outputs - first : width;
    for (size_t i = 0; i < num_tiles; ++i) {
      const size_t begin = num_rows * i / num_tiles, end = num_rows * (i + 1) / num_tiles;
      tile.x = x + begin * weight.num_inputs;
      multiply_rows<V, W>(end - begin, values, weight.bias + block * kBlock, tile);
      for (size_t row = begin; row < end; ++row) {
        float* const sums = tile.sums[row - begin];
        if (weight.is_gated) apply_gates<V>(sums);
        std::memcpy(out + row * weight.num_outputs + first, sums, count * sizeof(float));
      }
    }
  }
}

template <class V>
void multiply_any(const PackedWeight& weight, const float* x, size_t num_rows, float* out) {
  if (weight.is_bfloat16) return multiply_packed<V, Bfloat16>(weight, x, num_rows, out);
  return multiply_packed<V, float>(weight, x, num_rows, out);
}

}  // namespace
}  // namespace fastverify
