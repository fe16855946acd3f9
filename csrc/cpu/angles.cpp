// The C library's sine and cosine: a few hundred per pass.
#include "angles.hpp"

#include <cmath>

namespace fastverify {

void compute_angles(const int64_t* positions, size_t num_positions, const float* frequencies, size_t num_frequencies,
                    float scale, float* cos, float* sin) {
  for (size_t row = 0; row < num_positions; ++row) {
    const float position = static_cast<float>(positions[row]);
    for (size_t i = 0; i < num_frequencies; ++i, ++cos, ++sin) {
      const float angle = position * frequencies[i];
      *cos = std::cos(angle) * scale;
      *sin = std::sin(angle) * scale;
    }
  }
}

}  // namespace fastverify
