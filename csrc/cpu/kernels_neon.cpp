// 64-bit Arm, whose baseline has NEON and the half-precision conversions.
#include "kernels_impl.hpp"

#if defined(__aarch64__)
#include "neon.hpp"

namespace fastverify {
namespace {

constexpr Kernels kNeon = make_kernels<Neon>("neon");

}  // namespace

const Kernels* neon_kernels() { return &kNeon; }

}  // namespace fastverify
#else
const fastverify::Kernels* fastverify::neon_kernels() { return nullptr; }
#endif
