// All-reduce, residual and RMSNorm in one kernel: each rank holds whole rows after the sum, so the norm needs no second
// round. One row belongs to a cluster of FV_CLUSTER blocks (1 before SM90), which exchange partial sums of squares
// through each other's shared memory. Residual and weight are loaded with the input, before anything is waited for.
//
// residual += sum over ranks of x, added in float32 and rounded once; output = round(residual * scale) * weight.
// The partial sums have one order for a given launch, so ranks that use the same launch hold the same bits.
//
// Limits: row_bytes is a multiple of 16 and at most FV_CLUSTER * blockDim.x * UNITS units.

#include "inbox.cuh"

constexpr int MAX_WARPS = 32;

__device__ __forceinline__ float add_over_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// The sum of `value` over all threads of the cluster. `partials` alternate from row to row, so that a fast block does
// not overwrite what a slow one still reads.
__device__ __forceinline__ float add_over_cluster(float value, float (&partials)[CLUSTER * MAX_WARPS], u32 block) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  value = add_over_warp(value);
  if (lane < CLUSTER) put_into_block(&partials[block * num_warps + warp], lane, value);
  cluster_arrive();
  cluster_wait();
  float total = 0.0f;
  for (u32 i = lane; i < CLUSTER * num_warps; i += 32) total += partials[i];
  return add_over_warp(total);
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
    float values[ELEMENTS_PER_WORD], weights[ELEMENTS_PER_WORD];
    unpack(x.words[w], values);
    unpack(weight.words[w], weights);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[e] *= scale;
    unpack(pack(values), values);
#pragma unroll
    for (int e = 0; e < ELEMENTS_PER_WORD; ++e) values[e] *= weights[e];
    normed.words[w] = pack(values);
  }
  return normed;
}

// What is added to the sum and what multiplies the norm, for the same units of the row.
template <int WORDS>
__device__ __forceinline__ void load_addends(const Call& call, const Span& span, u64 column, Unit<WORDS> (&residual)[UNITS],
                                             Unit<WORDS> (&weight)[UNITS]) {
#pragma unroll
  for (int k = 0; k < UNITS; ++k) {
    const u64 unit = span.first + k * span.stride;
    if (unit >= span.end) continue;
    residual[k] = load_unit<WORDS>(call.residual, unit, call.num_bytes);
    weight[k] = load_unit<WORDS>(call.weight, column + k * span.stride, call.row_bytes);
  }
}

template <class Protocol>
__device__ __forceinline__ void all_reduce_norm(const Call& call) {
  constexpr int WORDS = Protocol::WORDS;
  __shared__ float partials[2][CLUSTER * MAX_WARPS];
  cluster_arrive();
  const Turn turn = begin_turn(call);
  const u32 block = blockIdx.x % CLUSTER;
  const u64 row_units = call.row_bytes / (4 * WORDS);
  const u64 num_rows = call.num_bytes / call.row_bytes;
  const float hidden = static_cast<float>(row_units * WORDS * ELEMENTS_PER_WORD);
  const u64 column = static_cast<u64>(block) * blockDim.x + threadIdx.x;
  Span span;
  span.stride = static_cast<u64>(CLUSTER) * blockDim.x;
  u64 row = blockIdx.x / CLUSTER;
  span.first = row * row_units + column;
  span.end = (row + 1) * row_units;
  Unit<WORDS> own[UNITS], residual[UNITS], weight[UNITS];
  load_own(call, span, own);
  load_addends(call, span, column, residual, weight);
  retire_epoch(call, turn);
  bool is_first_row = true;
  for (u32 parity = 0; row < num_rows; parity ^= 1) {
    send<Protocol>(call, turn, span, own);
    Sums<WORDS> sums[UNITS];
    receive<Protocol>(call, turn, span, own, sums);
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      const u64 unit = span.first + k * span.stride;
      if (unit >= span.end) continue;
      sums[k].add(residual[k]);
      residual[k] = sums[k].round();
      store_unit(call.residual, unit, call.num_bytes, residual[k]);
      squares += sum_of_squares(residual[k]);
    }
    if (is_first_row) cluster_wait();  // every block of the cluster runs, so its shared memory may be written
    is_first_row = false;
    const float scale = rsqrtf(add_over_cluster(squares, partials[parity], block) / hidden + call.eps);
#pragma unroll
    for (int k = 0; k < UNITS; ++k) {
      const u64 unit = span.first + k * span.stride;
      if (unit < span.end) store_unit(call.output, unit, call.num_bytes, normalise(residual[k], scale, weight[k]));
    }
    row += gridDim.x / CLUSTER;
    span.first = row * row_units + column;
    span.end = (row + 1) * row_units;
    if (row < num_rows) {
      load_own(call, span, own);
      load_addends(call, span, column, residual, weight);
    }
  }
}

extern "C" __global__ void FV_CLUSTER_DIMS __launch_bounds__(FV_MAX_THREADS) fastverify_fused_lines(const __grid_constant__ Call call) {
  all_reduce_norm<LineProtocol>(call);
}

extern "C" __global__ void FV_CLUSTER_DIMS __launch_bounds__(FV_MAX_THREADS) fastverify_fused_sentinel(const __grid_constant__ Call call) {
  all_reduce_norm<SentinelProtocol>(call);
}
