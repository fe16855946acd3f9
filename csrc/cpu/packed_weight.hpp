// Owns a weight in the layout that the kernels of one instruction set read.
#pragma once

#include <memory>

#include "forward_kernels.hpp"

namespace fastverify {

// A weight as PyTorch stores it: [num_outputs][num_inputs], and a bias or null.
struct WeightSource {
  const float* weight;
  const float* bias;
  size_t num_outputs, num_inputs;
  // The first half of the outputs are gates of the second.
  bool is_gated;
};

// Stored as bfloat16 if that loses nothing, which is so for a checkpoint in bfloat16; else as float32.
class OwnedWeight {
 public:
  OwnedWeight(const WeightSource& source, size_t num_lanes);

  const PackedWeight& view() const { return view_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const;
  };

  template <class T>
  void fill(const WeightSource& source, size_t num_lanes);

  PackedWeight view_;
  size_t num_bytes_;
  std::unique_ptr<void, Free> values_;
  std::unique_ptr<float[]> bias_;
};

}  // namespace fastverify
