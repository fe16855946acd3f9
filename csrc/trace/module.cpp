// Python module fastverify.trace._scan: the scanner, with columns as bytes so that it does not depend on numpy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "scanner.hpp"

namespace nb = nanobind;

namespace fastverify::trace {
namespace {

template <typename T>
nb::object take(Column<T>& column) {
  nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(column.num_bytes())));
  if (!out.is_valid()) throw nb::python_error();
  column.move_to(PyBytes_AsString(out.ptr()));
  return out;
}

template <typename... Columns>
nb::list take_all(Columns&... columns) {
  nb::list out;
  (out.append(take(columns)), ...);
  return out;
}

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::list to_bytes_list(const NameTable& names) {
  nb::list out;
  for (size_t id = 0; id < names.size(); ++id) out.append(to_bytes(names[id]));
  return out;
}

// The tables of one rank, each taken once; what is taken is freed here.
nb::dict take_rank(RankTables& rank) {
  auto& [k_ts, k_dur, k_name, k_device, k_stream, k_corr, k_ext, k_graph, k_bytes, k_work] = rank.kernels;
  auto& [l_ts, l_dur, l_name, l_thread, l_corr] = rank.launches;
  auto& [a_ts, a_dur, a_name, a_thread, a_device] = rank.annotations;
  auto& [o_ts, o_dur, o_name, o_thread, o_ext] = rank.cpu_ops;
  auto& [c_owner, c_row, c_op, c_dtype, c_group, c_about, c_size, c_in, c_out, c_seq] = rank.collectives;
  nb::dict out;
  out["document"] = rank.document;
  out["label"] = to_bytes(rank.label);
  out["num_cpu_ops"] = rank.num_cpu_ops;
  out["kernels"] = take_all(k_ts, k_dur, k_name, k_device, k_stream, k_corr, k_ext, k_graph, k_bytes, k_work);
  out["launches"] = take_all(l_ts, l_dur, l_name, l_thread, l_corr);
  out["annotations"] = take_all(a_ts, a_dur, a_name, a_thread, a_device);
  out["cpu_ops"] = take_all(o_ts, o_dur, o_name, o_thread, o_ext);
  out["collective_args"] = take_all(c_owner, c_row, c_op, c_dtype, c_group, c_about, c_size, c_in, c_out, c_seq);
  return out;
}

class PyScanner {
 public:
  PyScanner(std::unordered_map<std::string, int> tables, std::vector<std::string> collective_words)
      : scanner_(Dialect(std::move(tables)), std::move(collective_words)) {}

  PyScanner(const PyScanner&) = delete;
  PyScanner& operator=(const PyScanner&) = delete;

  void feed(nb::bytes data) {
    const nb::gil_scoped_release release;
    scanner_.feed(data.c_str(), data.size());
  }

  void finish() {
    const nb::gil_scoped_release release;
    scanner_.finish();
  }

  size_t num_ranks() const { return scanner_.ranks.size(); }
  int64_t num_events() const { return scanner_.num_events; }
  int num_documents() const { return scanner_.num_documents; }
  nb::dict take_rank_at(size_t index) { return take_rank(*scanner_.ranks.at(index)); }
  nb::list names() const { return to_bytes_list(scanner_.shared.names); }
  nb::list threads() const { return to_bytes_list(scanner_.shared.threads); }

  nb::list facts() const {
    nb::list out;
    for (const Fact& fact : scanner_.facts) {
      out.append(nb::make_tuple(fact.document, to_bytes(fact.label), to_bytes(fact.key), to_bytes(fact.text)));
    }
    return out;
  }

  nb::list faults() const {
    nb::list out;
    for (const auto& [name, fault] : scanner_.faults) {
      out.append(nb::make_tuple(name, fault.count, to_bytes(fault.example)));
    }
    return out;
  }

  nb::list unread_categories() const {
    nb::list out;
    for (const auto& [name, count] : scanner_.unread_categories) out.append(nb::make_tuple(to_bytes(name), count));
    return out;
  }

 private:
  Scanner scanner_;
};

}  // namespace
}  // namespace fastverify::trace

NB_MODULE(_scan, m) {
  using fastverify::trace::PyScanner;
  nb::class_<PyScanner>(m, "Scanner")
      .def(nb::init<std::unordered_map<std::string, int>, std::vector<std::string>>())
      .def("feed", &PyScanner::feed)
      .def("finish", &PyScanner::finish)
      .def_prop_ro("num_ranks", &PyScanner::num_ranks)
      .def_prop_ro("num_events", &PyScanner::num_events)
      .def_prop_ro("num_documents", &PyScanner::num_documents)
      .def("take_rank", &PyScanner::take_rank_at)
      .def("names", &PyScanner::names)
      .def("threads", &PyScanner::threads)
      .def("facts", &PyScanner::facts)
      .def("faults", &PyScanner::faults)
      .def("unread_categories", &PyScanner::unread_categories);
}
