// Chooses the instruction set at run time.
#include "kernels.hpp"

namespace fastverify {

const Kernels* find_kernels(const char* name) {
  const Kernels* const widest_first[] = {avx512_kernels(), avx2_kernels(), neon_kernels(), plain_kernels()};
  const bool any = std::strcmp(name, "auto") == 0;
  for (const Kernels* kernels : widest_first) {
    if (kernels != nullptr && (any || std::strcmp(name, kernels->name) == 0)) return kernels;
  }
  return nullptr;
}

}  // namespace fastverify
