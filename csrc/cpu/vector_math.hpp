// exp of whole registers, with the same bits on every instruction set.
//
// Unnamed namespace, and no standard library templates, for the reason given in floats.hpp.
#pragma once

#include "floats.hpp"

namespace fastverify {
namespace {

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, where eight terms of the series leave less than 2^-27. Below -87.33 the
// result is 0 (float32 has denormals there), above 88.37 that of 88.37.
template <class V>
inline typename V::Reg exp(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg lowest = V::broadcast(-87.33f);
  const Reg clamped = V::min(V::max(x, lowest), V::broadcast(88.37f));
  const Reg n = V::round(V::multiply(clamped, V::broadcast(1.44269504f)));
  // ln(2) in two parts, the first short enough that n times it is exact.
  Reg r = V::fma(n, V::broadcast(-0.693359375f), clamped);
  r = V::fma(n, V::broadcast(2.12194440e-4f), r);
  constexpr float kInverseFactorials[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Reg total = V::broadcast(1.0f / 5040);
  for (float coefficient : kInverseFactorials) total = V::fma(total, r, V::broadcast(coefficient));
  return V::keep_from(V::multiply(total, V::power_of_two(n)), x, lowest);
}

template <class V>
inline typename V::Reg silu(typename V::Reg x) {
  const typename V::Reg one = V::broadcast(1.0f);
  return V::divide(x, V::add(one, exp<V>(V::multiply(x, V::broadcast(-1.0f)))));
}

}  // namespace
}  // namespace fastverify
