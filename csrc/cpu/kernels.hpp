// The arithmetic of the collectives, compiled once per instruction set and chosen at run time.
//
// Sums add the sources in the order given, in float32, and round once to the element type, so every instruction set
// gives the same bits. The norm's sum of squares depends on the number of lanes: all ranks must use one set.
#pragma once

#include "floats.hpp"

namespace fastverify {

struct DtypeKernels {
  // dst[i] = sum over s of sources[s][i]. dst may be one of the sources.
  void (*sum)(void* dst, const void* const* sources, int num_sources, size_t num_elements);
  // residual[i] += sum over s of sources[s][i], rounded once.
  void (*add_sum)(void* residual, const void* const* sources, int num_sources, size_t num_elements);
  // out = round(row / sqrt(mean(row^2) + eps)) * weight for one row.
  void (*rms_norm)(void* out, const void* row, const void* weight, float eps, size_t hidden_size);
};

struct Kernels {
  const char* name;
  // As memcpy, but past the caches where the set has such stores, and complete in memory order when it returns: a
  // release store that follows covers it. Null where the set has none.
  void (*copy_streamed)(void* dst, const void* src, size_t num_bytes);
  DtypeKernels by_dtype[kNumDtypes];

  const DtypeKernels& operator[](Dtype dtype) const { return by_dtype[static_cast<int>(dtype)]; }
};

// Each is null where the set was not compiled in or this processor lacks it.
const Kernels* plain_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

// `name` is "auto" (the widest that runs here) or one set's name; null if that one does not run here.
const Kernels* find_kernels(const char* name);

}  // namespace fastverify
