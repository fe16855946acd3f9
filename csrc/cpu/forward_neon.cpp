// The forward pass on 64-bit Arm.
#include "forward_impl.hpp"

#if defined(__aarch64__)
#include "neon.hpp"

namespace fastverify {
namespace {

constexpr ForwardKernels kForward = make_forward_kernels<Neon>("neon");

}  // namespace

const ForwardKernels* neon_forward_kernels() {
  return &kForward;
}

}  // namespace fastverify
#else
const fastverify::ForwardKernels* fastverify::neon_forward_kernels() { return nullptr; }
#endif
