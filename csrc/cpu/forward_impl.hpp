// The table of one instruction set; included by one file per set.
#pragma once

#include "attention_impl.hpp"
#include "linear_impl.hpp"
#include "rows_impl.hpp"

namespace fastverify {
namespace {

template <class V>
constexpr ForwardKernels make_forward_kernels(const char* name) {
  return {name, V::kLanes, multiply_any<V>, rotate_heads<V>, attend_request<V>, arg_max_rows<V>};
}

}  // namespace
}  // namespace fastverify
