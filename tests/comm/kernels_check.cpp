// Compares every vector set that this processor runs with the plain one, on random bits: infinities, NaN, denormals.
// Prints one line per set; exits with 1 if any sum differs. Built and run by test_kernels.py, natively and for Arm.
#include <cstdio>
#include <vector>

#include "kernels.hpp"

using namespace fastverify;

namespace {

using Bytes = std::vector<unsigned char>;

uint32_t next_random() {
  static uint32_t state = 12345;
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

Bytes random_bytes(size_t count) {
  Bytes bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(next_random() >> 11);
  return bytes;
}

float element(const Bytes& bytes, size_t index, Dtype dtype) {
  if (dtype == Dtype::kFloat32) {
    float value;
    std::memcpy(&value, &bytes[4 * index], 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, &bytes[2 * index], 2);
  return dtype == Dtype::kBfloat16 ? to_float(Bfloat16{bits}) : to_float(Float16{bits});
}

long count_differences(const Bytes& a, const Bytes& b, Dtype dtype) {
  long differences = 0;
  for (size_t i = 0; i < a.size() / kItemBytes[static_cast<int>(dtype)]; ++i) {
    const float x = element(a, i, dtype), y = element(b, i, dtype);
    const bool same = (x != x && y != y) || bits_of(x) == bits_of(y);
    differences += same ? 0 : 1;
  }
  return differences;
}

long check_once(const Kernels& kernels, Dtype dtype) {
  const size_t num_elements = 1 + next_random() % 200;
  const size_t num_bytes = num_elements * kItemBytes[static_cast<int>(dtype)];
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (uint32_t i = 0; i < 2 + next_random() % 8; ++i) inputs.push_back(random_bytes(num_bytes));
  for (const Bytes& input : inputs) sources.push_back(input.data());
  const int num_sources = static_cast<int>(sources.size());
  const DtypeKernels& plain = (*plain_kernels())[dtype];

  Bytes expected(num_bytes), actual(num_bytes);
  plain.sum(expected.data(), sources.data(), num_sources, num_elements);
  kernels[dtype].sum(actual.data(), sources.data(), num_sources, num_elements);
  long differences = count_differences(expected, actual, dtype);

  expected = actual = random_bytes(num_bytes);
  plain.add_sum(expected.data(), sources.data(), num_sources, num_elements);
  kernels[dtype].add_sum(actual.data(), sources.data(), num_sources, num_elements);
  differences += count_differences(expected, actual, dtype);

  if (kernels.copy_streamed != nullptr) {
    kernels.copy_streamed(actual.data(), inputs[0].data(), num_bytes);
    differences += actual == inputs[0] ? 0 : 1;
  }
  return differences;
}

}  // namespace

int main() {
  long total = 0;
  for (const Kernels* kernels : {avx512_kernels(), avx2_kernels(), neon_kernels()}) {
    if (kernels == nullptr) continue;
    long differences = 0;
    for (int code = 0; code < kNumDtypes; ++code) {
      for (int round = 0; round < 500; ++round) differences += check_once(*kernels, static_cast<Dtype>(code));
    }
    std::printf("%s: %ld differences\n", kernels->name, differences);
    total += differences;
  }
  return total == 0 ? 0 : 1;
}
