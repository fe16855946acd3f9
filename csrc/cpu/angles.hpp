// Angles of the rotary position embedding.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastverify {

// cos and sin of position * frequency, times scale: [positions][frequencies] each. Both go through float32.
void compute_angles(const int64_t* positions, size_t num_positions, const float* frequencies, size_t num_frequencies,
                    float scale, float* cos, float* sin);

}  // namespace fastverify
