// The tables of one rank, filled event by event. Columns here must match the dataclasses of
// src/fastverify/trace/events.py, which say what each means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "columns.hpp"
#include "event.hpp"

namespace fastverify::trace {

constexpr int64_t kNoId = -1;

struct KernelColumns {
  Column<int64_t> ts, dur;
  Column<int32_t> name, device, stream;
  Column<int64_t> correlation, external_id, graph_id, num_bytes;
  Column<uint8_t> work;
};

struct LaunchColumns {
  Column<int64_t> ts, dur;
  Column<int32_t> name, thread;
  Column<int64_t> correlation;
};

struct AnnotationColumns {
  Column<int64_t> ts, dur;
  Column<int32_t> name, thread;
  Column<uint8_t> on_device;
};

struct CpuOpColumns {
  Column<int64_t> ts, dur;
  Column<int32_t> name, thread;
  Column<int64_t> external_id;
};

struct CollectiveColumns {
  Column<uint8_t> owner;
  Column<int32_t> row, op, dtype, group, group_description, group_size;
  Column<int64_t> in_elements, out_elements, sequence;
};

// Names and threads are shared by all ranks of a file.
struct Shared {
  NameTable names;
  NameTable threads;  // "pid\x1ftid"
  std::vector<std::string> collective_words;
  std::vector<uint8_t> is_collective;  // by name id: 0 unknown, 1 no, 2 yes

  bool names_a_collective(int32_t name);
};

class RankTables {
 public:
  RankTables(int document, std::string label) : document(document), label(std::move(label)) {}

  // False when the time is no number: nothing was recorded.
  bool record(const Event& event, Shared& shared);

  int document;
  std::string label;
  KernelColumns kernels;
  LaunchColumns launches;
  AnnotationColumns annotations;
  CpuOpColumns cpu_ops;
  CollectiveColumns collectives;
  int64_t num_cpu_ops = 0;

 private:
  struct Span {
    int64_t ts;
    int64_t dur;
  };
  struct Args;

  void record_kernel(const Event& event, const Span& span, const Args& args, Shared& shared);
  void record_cpu_op(const Event& event, const Span& span, const Args& args, Shared& shared);
  void record_collective(int owner, size_t row, const Args& args, Shared& shared);
  void drop_other_cpu_ops(Shared& shared);
};

}  // namespace fastverify::trace
