// Chooses the instruction set of the forward pass at run time.
#include "forward_kernels.hpp"

namespace fastverify {

const ForwardKernels* find_forward_kernels(const char* name) {
  const ForwardKernels* const widest_first[] = {avx512_forward_kernels(), avx2_forward_kernels(),
                                                neon_forward_kernels()};
  const bool any = std::strcmp(name, "auto") == 0;
  for (const ForwardKernels* kernels : widest_first) {
    if (kernels != nullptr && (any || std::strcmp(name, kernels->name) == 0)) return kernels;
  }
  return nullptr;
}

size_t attention_scratch_size(size_t num_visible, size_t head_dim) {
  // Scores and mask of each visible row, queries and output of each element; the widest tile is two AVX-512 registers.
  return (2 * num_visible + 2 * head_dim) * 32;
}

}  // namespace fastverify
