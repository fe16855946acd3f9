// Python module fastverify.models._kernels: the kernels of a forward pass, with pointers as integers so that it does
// not depend on torch. Callers own the memory and answer for shapes; see models/kernels.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "angles.hpp"
#include "packed_weight.hpp"
#include "python_errors.hpp"
#include "vocabulary.hpp"

namespace nb = nanobind;

namespace fastverify {
namespace {

using Address = uintptr_t;

float* floats_at(Address address) { return reinterpret_cast<float*>(address); }
int64_t* integers_at(Address address) { return reinterpret_cast<int64_t*>(address); }

const ForwardKernels& require_kernels(const std::string& simd) {
  const ForwardKernels* const kernels = find_forward_kernels(simd.c_str());
  if (kernels == nullptr) throw SystemRefusedError("vector code " + simd + " does not run on this processor.");
  return *kernels;
}

class PyLinear {
 public:
  PyLinear(const std::string& simd, Address weight, Address bias, size_t num_outputs, size_t num_inputs, bool is_gated)
      : kernels_(require_kernels(simd)),
        weight_({floats_at(weight), floats_at(bias), num_outputs, num_inputs, is_gated}, kernels_.num_lanes) {}

  void run(Address x, size_t num_rows, Address out) const {
    kernels_.linear(weight_.view(), floats_at(x), num_rows, floats_at(out));
  }
  bool is_bfloat16() const { return weight_.view().is_bfloat16; }
  size_t num_bytes() const { return weight_.num_bytes(); }

 private:
  const ForwardKernels& kernels_;
  OwnedWeight weight_;
};

// Keys and values as [layers][slots][rows][kv heads][head size], each `keys` and `values`.
struct CacheSizes {
  size_t num_slots, num_rows, num_kv_heads, head_dim;

  size_t row() const { return num_kv_heads * head_dim; }
  size_t layer() const { return num_slots * num_rows * row(); }
};

// slot, start, num_rows, tail mask, tail size: engine.attention.Segment.
using Segment = std::tuple<size_t, size_t, size_t, Address, size_t>;

// Attention of one pass: the same requests in every layer.
class PyAttention {
 public:
  PyAttention(const std::string& simd, Address keys, Address values, std::tuple<size_t, size_t, size_t, size_t> sizes,
              const std::vector<Segment>& segments)
      : kernels_(require_kernels(simd)), keys_(keys), values_(values) {
    std::tie(sizes_.num_slots, sizes_.num_rows, sizes_.num_kv_heads, sizes_.head_dim) = sizes;
    size_t first_row = 0;
    for (const auto& [slot, start, num_rows, tail_mask, tail_size] : segments) {
      const size_t end = start + num_rows;
      if (slot >= sizes_.num_slots || end > sizes_.num_rows || tail_size > end) {
        throw CallMismatchError("a request needs slot " + std::to_string(slot) + " up to row " + std::to_string(end) +
                                ", the cache has " + std::to_string(sizes_.num_slots) + " slots of " +
                                std::to_string(sizes_.num_rows) + " rows.");
      }
      requests_.push_back({first_row, num_rows, start, slot * sizes_.num_rows, floats_at(tail_mask), tail_size});
      first_row += num_rows;
      scratch_size_ = std::max(scratch_size_, attention_scratch_size(end, sizes_.head_dim));
    }
  }

  void attend(size_t layer, size_t num_heads, Address q, size_t q_stride, Address k, size_t k_stride, Address v,
              size_t v_stride, Address out) const {
    const LayerCache cache{floats_at(keys_) + layer * sizes_.layer(), floats_at(values_) + layer * sizes_.layer()};
    // One per thread and never freed: passes come one after the other, thousands of them.
    static thread_local std::vector<float> scratch;
    if (scratch.size() < scratch_size_) scratch.resize(scratch_size_);
    for (const CachedRequest& request : requests_) {
      append(request, cache.keys, {floats_at(k), k_stride});
      append(request, cache.values, {floats_at(v), v_stride});
      kernels_.attend(request, {num_heads, sizes_.num_kv_heads, sizes_.head_dim}, {floats_at(q), q_stride}, cache,
                      scratch.data(), floats_at(out));
    }
  }

 private:
  void append(const CachedRequest& request, float* rows, const PackedRows& source) const {
    float* to = rows + (request.cache_row + request.start) * sizes_.row();
    for (size_t row = 0; row < request.num_rows; ++row, to += sizes_.row()) {
      std::memcpy(to, source.data + (request.first_row + row) * source.row_stride, sizes_.row() * sizeof(float));
    }
  }

  const ForwardKernels& kernels_;
  Address keys_, values_;
  CacheSizes sizes_;
  std::vector<CachedRequest> requests_;
  size_t scratch_size_ = 0;
};

// The functions without state, bound to one instruction set.
class PyKernels {
 public:
  explicit PyKernels(const std::string& simd)
      : kernels_(require_kernels(simd)), row_kernels_(*find_kernels(kernels_.name)) {}

  const char* simd() const { return kernels_.name; }

  void rms_norm(Address x, Address weight, float eps, size_t num_rows, size_t size, Address out) const {
    const auto norm_row = row_kernels_[Dtype::kFloat32].rms_norm;
    for (size_t row = 0; row < num_rows; ++row) {
      norm_row(floats_at(out) + row * size, floats_at(x) + row * size, floats_at(weight), eps, size);
    }
  }

  void compute_angles(Address positions, size_t num_positions, Address frequencies, size_t num_frequencies, float scale,
                      Address cos, Address sin) const {
    fastverify::compute_angles(integers_at(positions), num_positions, floats_at(frequencies), num_frequencies, scale,
                               floats_at(cos), floats_at(sin));
  }

  void rotate(Address x, size_t row_stride, Address cos, Address sin, size_t num_rows, size_t num_heads,
              size_t head_dim) const {
    kernels_.rotate(floats_at(x), row_stride, floats_at(cos), floats_at(sin), num_rows, num_heads, head_dim);
  }

  void arg_max(Address logits, size_t num_rows, size_t row_stride, size_t num_columns, size_t first_id,
               Address best) const {
    kernels_.arg_max(floats_at(logits), num_rows, row_stride, num_columns, first_id, floats_at(best));
  }

  void choose_best(Address best, size_t num_ranks, size_t num_rows, Address ids) const {
    fastverify::choose_best(floats_at(best), num_ranks, num_rows, integers_at(ids));
  }

  void look_up(Address table, int64_t first_id, int64_t num_ids, size_t row_size, Address ids, size_t count,
               Address out) const {
    fastverify::look_up({floats_at(table), first_id, num_ids, row_size}, integers_at(ids), count, floats_at(out));
  }

 private:
  const ForwardKernels& kernels_;
  const Kernels& row_kernels_;
};

std::vector<std::string> list_simd() {
  std::vector<std::string> names;
  for (const char* name : {"avx512", "avx2", "neon"}) {
    if (find_forward_kernels(name) != nullptr) names.emplace_back(name);
  }
  return names;
}

}  // namespace
}  // namespace fastverify

NB_MODULE(_kernels, m) {
  using namespace fastverify;
  nb::set_leak_warnings(false);
  translate_to<CallMismatchError>("ShapeError");
  translate_to<SystemRefusedError>("UnsupportedError");
  m.def("list_simd", &list_simd);
  nb::class_<PyKernels>(m, "Kernels")
      .def(nb::init<const std::string&>(), nb::arg("simd"))
      .def_prop_ro("simd", &PyKernels::simd)
      .def("rms_norm", &PyKernels::rms_norm)
      .def("compute_angles", &PyKernels::compute_angles)
      .def("rotate", &PyKernels::rotate)
      .def("arg_max", &PyKernels::arg_max)
      .def("choose_best", &PyKernels::choose_best)
      .def("look_up", &PyKernels::look_up);
  nb::class_<PyLinear>(m, "PackedLinear")
      .def(nb::init<const std::string&, Address, Address, size_t, size_t, bool>(), nb::arg("simd"), nb::arg("weight"),
           nb::arg("bias"), nb::arg("num_outputs"), nb::arg("num_inputs"), nb::arg("is_gated"))
      .def_prop_ro("is_bfloat16", &PyLinear::is_bfloat16)
      .def_prop_ro("num_bytes", &PyLinear::num_bytes)
      .def("run", &PyLinear::run);
  nb::class_<PyAttention>(m, "CachedAttention")
      .def(nb::init<const std::string&, Address, Address, std::tuple<size_t, size_t, size_t, size_t>,
                    const std::vector<Segment>&>(),
           nb::arg("simd"), nb::arg("keys"), nb::arg("values"), nb::arg("sizes"), nb::arg("segments"))
      .def("attend", &PyAttention::attend);
}
