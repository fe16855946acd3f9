// Packs a weight: blocks of kBlock outputs, input by input.
//
// In bfloat16, each 2 * num_lanes outputs of a block are interleaved as load_pair takes them apart.
#include "packed_weight.hpp"

#include <cstdlib>
#include <new>

namespace fastverify {
namespace {

constexpr size_t kCacheLine = 64;

bool fits_bfloat16(const WeightSource& source) {
  const size_t count = source.num_outputs * source.num_inputs;
  for (size_t i = 0; i < count; ++i) {
    if ((bits_of(source.weight[i]) & 0xffffu) != 0) return false;
  }
  return true;
}

// Row of the source that block `block` holds at `place`, or num_outputs where it holds padding.
size_t source_row(const WeightSource& source, size_t block, size_t place) {
  if (!source.is_gated) {
    const size_t row = block * kBlock + place;
    return row < source.num_outputs ? row : source.num_outputs;
  }
  const size_t num_gates = source.num_outputs / 2, width = kBlock / 2;
  const size_t gate = block * width + place % width;
  if (gate >= num_gates) return source.num_outputs;
  return place < width ? gate : num_gates + gate;
}

size_t stored_place(size_t place, size_t num_lanes, bool is_interleaved) {
  if (!is_interleaved) return place;
  const size_t pair = place / (2 * num_lanes), inside = place % (2 * num_lanes);
  return pair * 2 * num_lanes + inside % num_lanes * 2 + inside / num_lanes;
}

}  // namespace

void OwnedWeight::Free::operator()(void* memory) const { std::free(memory); }

template <class T>
void OwnedWeight::fill(const WeightSource& source, size_t num_lanes) {
  T* const values = static_cast<T*>(values_.get());
  for (size_t block = 0; block < view_.num_blocks; ++block) {
    for (size_t place = 0; place < kBlock; ++place) {
      const size_t row = source_row(source, block, place);
      if (row == source.num_outputs) continue;
      if (source.bias != nullptr) bias_[block * kBlock + place] = source.bias[row];
      T* to = values + block * source.num_inputs * kBlock + stored_place(place, num_lanes, view_.is_bfloat16);
      const float* const from = source.weight + row * source.num_inputs;
      for (size_t k = 0; k < source.num_inputs; ++k) from_float(from[k], to + k * kBlock);
    }
  }
}

OwnedWeight::OwnedWeight(const WeightSource& source, size_t num_lanes) {
  const size_t num_blocks = (source.num_outputs + kBlock - 1) / kBlock;
  const size_t num_gated_blocks = (source.num_outputs / 2 + kBlock / 2 - 1) / (kBlock / 2);
  view_.num_inputs = source.num_inputs;
  view_.num_blocks = source.is_gated ? num_gated_blocks : num_blocks;
  view_.num_outputs = source.is_gated ? source.num_outputs / 2 : source.num_outputs;
  view_.is_bfloat16 = fits_bfloat16(source);
  view_.is_gated = source.is_gated;
  const size_t itemsize = view_.is_bfloat16 ? sizeof(Bfloat16) : sizeof(float);
  // A multiple of the alignment, as aligned_alloc wants: kBlock items are.
  num_bytes_ = view_.num_blocks * source.num_inputs * kBlock * itemsize;
  values_.reset(std::aligned_alloc(kCacheLine, num_bytes_));
  if (!values_) throw std::bad_alloc();
  std::memset(values_.get(), 0, num_bytes_);
  bias_ = std::make_unique<float[]>(view_.num_blocks * kBlock);
  view_.values = values_.get();
  view_.bias = bias_.get();
  if (view_.is_bfloat16) {
    fill<Bfloat16>(source, num_lanes);
  } else {
    fill<float>(source, num_lanes);
  }
}

}  // namespace fastverify
