// Python module fastverify.comm._shm: the collectives, with pointers as integers so that it does not depend on torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "collectives.hpp"
#include "python_errors.hpp"

namespace nb = nanobind;

namespace fastverify {
namespace {

// Frees the interpreter lock during a long wait and takes it back to look for signals and dead ranks.
class PythonObserver final : public WaitObserver {
 public:
  explicit PythonObserver(nb::callable find_dead) : find_dead_(std::move(find_dead)) {}

  void begin_long_wait() override { saved_ = PyEval_SaveThread(); }

  void end_long_wait() noexcept override {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
    saved_ = nullptr;
  }

  // On an exception the lock stays with this thread, as Python expects.
  uint64_t find_dead_ranks() override {
    end_long_wait();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    const uint64_t dead = nb::cast<uint64_t>(find_dead_());
    begin_long_wait();
    return dead;
  }

 private:
  nb::callable find_dead_;
  PyThreadState* saved_ = nullptr;
};

const Kernels& require_kernels(const std::string& simd) {
  const Kernels* const kernels = find_kernels(simd.c_str());
  if (kernels == nullptr) throw SystemRefusedError("vector code " + simd + " does not run on this processor.");
  return *kernels;
}

Dtype to_dtype(int code) {
  if (code < 0 || code >= kNumDtypes) throw SystemRefusedError("unknown dtype code " + std::to_string(code) + ".");
  return static_cast<Dtype>(code);
}

void* to_pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

std::chrono::nanoseconds to_ns(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

class PyCollectives {
 public:
  PyCollectives(std::string name, int rank, int world_size, size_t slot_bytes, double timeout_s, double spin_s,
                const std::string& simd, nb::callable find_dead, uint32_t first_epoch)
      : observer_(std::move(find_dead)), simd_(require_kernels(simd).name) {
    if (world_size < 2 || world_size > kMaxRanks || rank < 0 || rank >= world_size || slot_bytes == 0) {
      throw SystemRefusedError("shared memory connects 2 to " + std::to_string(kMaxRanks) + " ranks, got rank " +
                               std::to_string(rank) + " of " + std::to_string(world_size) + ".");
    }
    const SegmentConfig config{std::move(name), rank, world_size, slot_bytes, first_epoch};
    collectives_ = std::make_unique<Collectives>(config, WaitPolicy{to_ns(timeout_s), to_ns(spin_s)},
                                                 require_kernels(simd), observer_);
  }

  void all_reduce(uintptr_t x, size_t num_elements, int dtype) {
    open().all_reduce(to_pointer(x), num_elements, to_dtype(dtype));
  }

  void all_reduce_residual_rmsnorm(uintptr_t x, uintptr_t residual, uintptr_t weight, size_t rows, size_t hidden_size,
                                   float eps, int dtype) {
    open().all_reduce_residual_rmsnorm({to_pointer(x), to_pointer(residual), to_pointer(weight), rows, hidden_size, eps,
                                        to_dtype(dtype)});
  }

  void all_gather(uintptr_t input, uintptr_t output, size_t num_bytes) {
    open().all_gather(to_pointer(input), to_pointer(output), num_bytes);
  }

  void set_thresholds(size_t two_shot_min_bytes, size_t stream_min_bytes) {
    open().set_thresholds({two_shot_min_bytes, stream_min_bytes});
  }
  const char* simd() const { return simd_; }
  bool can_stream() const { return find_kernels(simd_)->copy_streamed != nullptr; }
  void close() { collectives_.reset(); }

 private:
  Collectives& open() {
    if (!collectives_) throw RankMissingError("this rank has closed its communicator. Create a new one.");
    return *collectives_;
  }

  PythonObserver observer_;
  const char* simd_;
  std::unique_ptr<Collectives> collectives_;
};

std::vector<std::string> list_simd() {
  std::vector<std::string> names;
  for (const char* name : {"avx512", "avx2", "neon", "plain"}) {
    if (find_kernels(name) != nullptr) names.emplace_back(name);
  }
  return names;
}

}  // namespace
}  // namespace fastverify

NB_MODULE(_shm, m) {
  using fastverify::PyCollectives;
  // A process that ends without close() is not worth a warning: the kernel frees the memory.
  nb::set_leak_warnings(false);
  fastverify::translate_to<fastverify::RankMissingError>("CommTimeoutError");
  fastverify::translate_to<fastverify::CallMismatchError>("ShapeError");
  fastverify::translate_to<fastverify::SystemRefusedError>("UnsupportedError");
  m.def("list_simd", &fastverify::list_simd);
  nb::class_<PyCollectives>(m, "Collectives")
      .def(nb::init<std::string, int, int, size_t, double, double, const std::string&, nb::callable, uint32_t>(),
           nb::arg("name"), nb::arg("rank"), nb::arg("world_size"), nb::arg("slot_bytes"), nb::arg("timeout_s"),
           nb::arg("spin_s"), nb::arg("simd"), nb::arg("find_dead"), nb::arg("first_epoch"))
      .def_prop_ro("simd", &PyCollectives::simd)
      .def_prop_ro("can_stream", &PyCollectives::can_stream)
      .def("all_reduce", &PyCollectives::all_reduce)
      .def("all_reduce_residual_rmsnorm", &PyCollectives::all_reduce_residual_rmsnorm)
      .def("all_gather", &PyCollectives::all_gather)
      .def("set_thresholds", &PyCollectives::set_thresholds)
      .def("close", &PyCollectives::close);
}
