// All-reduce, residual and RMSNorm in one kernel: each rank holds whole rows after the sum, so the norm needs no second
// round. One row belongs to a cluster of FV_CLUSTER blocks (1 before SM90).
//
// residual += bias + sum over ranks of x, added in float32 and rounded once; output = round(residual * scale) * weight.
// Totals over a row have one order for a given launch, so ranks that use the same launch hold the same bits.
//
// What takes time here is latency, so: everything is loaded before the first wait, the epoch is retired while data is on
// its way, and what nobody waits for is stored while the row's total is on its way.
//
// Limits: row_bytes is a multiple of 16 and at most FV_CLUSTER * blockDim.x * UNITS units; so no unit is cut short.

#pragma once

#include "inbox.cuh"
#include "row_total.cuh"

template <int WORDS>
__device__ __forceinline__ Unit<WORDS> load_whole_unit(u64 base, u64 index) {
  Unit<WORDS> unit;
  if constexpr (WORDS == 4) {
    const uint4 value = *reinterpret_cast<const uint4*>(base + index * 16);
    unit.words[0] = value.x, unit.words[1] = value.y, unit.words[2] = value.z, unit.words[3] = value.w;
  } else {
    const uint2 value = *reinterpret_cast<const uint2*>(base + index * 8);
    unit.words[0] = value.x, unit.words[1] = value.y;
  }
  return unit;
}

template <int WORDS>
__device__ __forceinline__ void store_whole_units(u64 base, const Span& span, const Unit<WORDS> (&units)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 index = span.first + k * span.stride;
    const u32(&words)[WORDS] = units[k].words;
    if (index >= span.end) continue;
    if constexpr (WORDS == 4) {
      *reinterpret_cast<uint4*>(base + index * 16) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      *reinterpret_cast<uint2*>(base + index * 8) = make_uint2(words[0], words[1]);
    }
  }
}

__device__ __forceinline__ u32 multiply(u32 a, u32 b) {
#if FV_DTYPE == FV_FLOAT32
  return __float_as_uint(__uint_as_float(a) * __uint_as_float(b));
#elif FV_DTYPE == FV_BFLOAT16
  return multiply_bf16x2(a, b);
#else
  return multiply_fp16x2(a, b);
#endif
}

template <int WORDS>
__device__ __forceinline__ float sum_of_squares(const Unit<WORDS>& unit) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    float values[ELEMENTS_PER_WORD];
    unpack(unit.words[w], values);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) total += values[e] * values[e];
  }
  return total;
}

// round(x * scale) * weight, rounded again, as the models do.
template <int WORDS>
__device__ __forceinline__ Unit<WORDS> normalise(const Unit<WORDS>& x, float scale, const Unit<WORDS>& weight) {
  Unit<WORDS> normed;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    float values[ELEMENTS_PER_WORD];
    unpack(x.words[w], values);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[e] *= scale;
    normed.words[w] = multiply(pack(values), weight.words[w]);
  }
  return normed;
}

// This thread's units of one row, and what comes with them.
template <int WORDS>
struct RowUnits {
  Unit<WORDS> own[UNITS];
  Unit<WORDS> residual[UNITS];
  Unit<WORDS> bias[UNITS];

  __device__ __forceinline__ void load(const Call& call, const Span& span, u32 column) {
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      const u64 unit = span.first + k * span.stride;
      if (unit >= span.end) continue;
      own[k] = load_whole_unit<WORDS>(call.input, unit);
      residual[k] = load_whole_unit<WORDS>(call.residual, unit);
      if (call.bias != 0) bias[k] = load_whole_unit<WORDS>(call.bias, column + k * span.stride);
    }
  }
};

// The new residual, in place of the old one. Returns its sum of squares.
template <int WORDS>
__device__ __forceinline__ float add_to_residual(const Call& call, const Span& span, Sums<WORDS> (&sums)[UNITS],
                                                 RowUnits<WORDS>& units) {
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    if (span.first + k * span.stride >= span.end) continue;
    if (call.bias != 0) sums[k].add(units.bias[k]);
    sums[k].add(units.residual[k]);
    units.residual[k] = sums[k].round();
    squares += sum_of_squares(units.residual[k]);
  }
  return squares;
}

// What becomes of the norm of a row.
struct StoreNorm {
  template <int WORDS>
  __device__ static __forceinline__ void finish(const Call& call, const Span& span, u32, RowTotal&,
                                                const Unit<WORDS> (&normed)[UNITS]) {
    store_whole_units(call.output, span, normed);
  }
};

template <class Protocol, class Boxes, class Finish>
__device__ __forceinline__ void all_reduce_norm(const Call& call) {
  constexpr int WORDS = Protocol::WORDS;
  __shared__ RowParts parts;
  RowTotal row_total{parts, blockIdx.x % CLUSTER, 0};
  row_total.open();
  const u32 row_units = call.row_bytes / (4 * WORDS), num_units = static_cast<u32>(call.num_bytes / (4 * WORDS));
  const u32 column = row_total.block * blockDim.x + threadIdx.x;
  const float mean_factor = reciprocal(static_cast<float>(row_units * WORDS * ELEMENTS_PER_WORD));
  u32 row = blockIdx.x / CLUSTER;
  Span span{row * row_units + column, CLUSTER * blockDim.x, (row + 1) * row_units};
  Unit<WORDS> weight[UNITS];
  RowUnits<WORDS> units;
  await_launch_before();
  units.load(call, span, column);
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    if (column + k * span.stride < row_units) weight[k] = load_whole_unit<WORDS>(call.weight, column + k * span.stride);
  }
  Turn turn = read_turn(call);
  const auto channel = open_channel<Protocol, Boxes>(call, turn, FIRST);
  bool is_first_row = true;
  while (span.end <= num_units) {
    send<Protocol, Boxes>(call, turn, span, units.own);
    Spot spots[UNITS];
    find_spots(channel, span, 0, spots);
    if (is_first_row) {
      allow_next_launch();  // its blocks would have delayed the sends
      retire_epoch(call, turn);
      row_total.meet();
    }
    is_first_row = false;
    Sums<WORDS> sums[UNITS];
    add_up(channel, turn, span, spots, units.own, sums);
    give_back_all(channel, span, spots);
    row_total.offer<Sum>(add_to_residual(call, span, sums, units));
    store_whole_units(call.residual, span, units.residual);
    const float scale = rsqrtf(row_total.total<Sum>() * mean_factor + call.eps);
    Unit<WORDS> normed[UNITS];
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      if (span.first + k * span.stride < span.end) normed[k] = normalise(units.residual[k], scale, weight[k]);
    }
    Finish::finish(call, span, row, row_total, normed);
    row += gridDim.x / CLUSTER;
    span.first = row * row_units + column;
    span.end = (row + 1) * row_units;
    if (span.end <= num_units) units.load(call, span, column);
  }
  if (is_first_row) retire_epoch(call, turn);
  end_turn(call, turn);
}
