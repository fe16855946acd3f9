// See tables.hpp.
#include "tables.hpp"

#include <array>

namespace fastverify::trace {
namespace {

// Must match CollectiveOwner in src/fastverify/trace/events.py.
constexpr int kOwnerKernel = 0;
constexpr int kOwnerCpuOp = 1;

int32_t thread_of(const Event& event, Shared& shared) {
  std::string key(unquoted(event.pid));
  key += '\x1f';
  key += unquoted(event.tid);
  return shared.threads.intern(key);
}

// `7`, `"7"`, `"stream 7 "`: the number at the end.
int32_t number_at_end(std::string_view value) {
  value = unquoted(value);
  while (!value.empty() && is_space(value.back())) value.remove_suffix(1);
  size_t digits = 0;
  while (digits < value.size() && digits < 9 && value[value.size() - 1 - digits] >= '0' &&
         value[value.size() - 1 - digits] <= '9') {
    ++digits;
  }
  return static_cast<int32_t>(parse_whole(value.substr(value.size() - digits), kNoId));
}

int32_t intern_value(std::string_view value, Shared& shared) {
  return value.empty() ? static_cast<int32_t>(kNoId) : shared.names.intern(unquoted(value));
}

int32_t narrow(int64_t value) {
  return value < INT32_MIN || value > INT32_MAX ? static_cast<int32_t>(kNoId) : static_cast<int32_t>(value);
}

}  // namespace

struct RankTables::Args {
  std::string_view correlation, external_id, device, stream, bytes, graph_id;
  std::string_view op, in_elements, out_elements, group_size, dtype, group, group_description, sequence;

  explicit Args(std::string_view text) {
    if (text.size() < 2 || text.front() != '{') return;
    Notes ignored;
    const Reading reading{Quotes::kLenient, ignored};
    const char* p = text.data() + 1;
    const char* const end = text.data() + text.size();
    while (true) {
      p = skip_space_and_commas(p, end);
      std::string_view key;
      if (p == end || *p != '"' || read_string(p, end, {Quotes::kStrict, ignored}, key) != Found::kDone) return;
      p = skip_space(p, end);
      if (p == end || *p != ':') return;
      p = skip_space(p + 1, end);
      const char* const value = p;
      if (skip_value(p, end, reading) != Found::kDone) return;
      if (std::string_view* const slot = find(key)) *slot = {value, static_cast<size_t>(p - value)};
    }
  }

  std::string_view* find(std::string_view key) {
    struct Slot {
      std::string_view key;
      std::string_view Args::*member;
    };
    static constexpr std::array<Slot, 18> kSlots = {{
        {"correlation", &Args::correlation},
        {"External id", &Args::external_id},
        {"external id", &Args::external_id},
        {"device", &Args::device},
        {"stream", &Args::stream},
        {"bytes", &Args::bytes},
        {"graph id", &Args::graph_id},
        {"Collective name", &Args::op},
        {"In msg nelems", &Args::in_elements},
        {"In msg size", &Args::in_elements},
        {"Out msg nelems", &Args::out_elements},
        {"Out msg size", &Args::out_elements},
        {"Group size", &Args::group_size},
        {"dtype", &Args::dtype},
        {"Process Group Name", &Args::group},
        {"Process Group Description", &Args::group_description},
        {"Seq", &Args::sequence},
        {"seq", &Args::sequence},
    }};
    for (const Slot& slot : kSlots) {
      if (slot.key == key) return &(this->*slot.member);
    }
    return nullptr;
  }
};

bool Shared::names_a_collective(int32_t name) {
  if (is_collective.size() < names.size()) is_collective.resize(names.size(), 0);
  uint8_t& known = is_collective[name];
  if (known == 0) {
    known = 1;
    for (const std::string& word : collective_words) {
      if (names[name].find(word) != std::string::npos) known = 2;
    }
  }
  return known == 2;
}

bool RankTables::record(const Event& event, Shared& shared) {
  Span span{0, 0};
  if (!parse_us_as_ns(event.ts, span.ts)) return false;
  if (!event.dur.empty() && !parse_us_as_ns(event.dur, span.dur)) return false;
  const int32_t name_id = shared.names.intern(unquoted(event.name));
  switch (event.table) {
    case Table::kKernel:
    case Table::kMemcpy:
    case Table::kMemset:
      record_kernel(event, span, Args(event.args), shared);
      break;
    case Table::kLaunch:
      launches.ts.push(span.ts);
      launches.dur.push(span.dur);
      launches.name.push(name_id);
      launches.thread.push(thread_of(event, shared));
      launches.correlation.push(parse_whole(Args(event.args).correlation, kNoId));
      break;
    case Table::kCpuOp:
      ++num_cpu_ops;
      if (kernels.ts.size() == 0 || shared.names_a_collective(name_id)) {
        record_cpu_op(event, span, Args(event.args), shared);
      }
      break;
    default:
      annotations.ts.push(span.ts);
      annotations.dur.push(span.dur);
      annotations.name.push(name_id);
      annotations.thread.push(thread_of(event, shared));
      annotations.on_device.push(event.table == Table::kDeviceAnnotation);
  }
  return true;
}

void RankTables::record_kernel(const Event& event, const Span& span, const Args& args, Shared& shared) {
  if (kernels.ts.size() == 0) drop_other_cpu_ops(shared);
  kernels.ts.push(span.ts);
  kernels.dur.push(span.dur);
  kernels.name.push(shared.names.intern(unquoted(event.name)));
  kernels.device.push(number_at_end(args.device.empty() ? event.pid : args.device));
  kernels.stream.push(number_at_end(args.stream.empty() ? event.tid : args.stream));
  kernels.correlation.push(parse_whole(args.correlation, kNoId));
  kernels.external_id.push(parse_whole(args.external_id, kNoId));
  kernels.graph_id.push(parse_whole(args.graph_id, kNoId));
  kernels.num_bytes.push(parse_whole(args.bytes, kNoId));
  kernels.work.push(static_cast<uint8_t>(static_cast<int>(event.table) - static_cast<int>(Table::kKernel)));
  if (!args.op.empty()) record_collective(kOwnerKernel, kernels.ts.size() - 1, args, shared);
}

void RankTables::record_cpu_op(const Event& event, const Span& span, const Args& args, Shared& shared) {
  cpu_ops.ts.push(span.ts);
  cpu_ops.dur.push(span.dur);
  cpu_ops.name.push(shared.names.intern(unquoted(event.name)));
  cpu_ops.thread.push(thread_of(event, shared));
  cpu_ops.external_id.push(parse_whole(args.external_id, kNoId));
  if (!args.op.empty()) record_collective(kOwnerCpuOp, cpu_ops.ts.size() - 1, args, shared);
}

void RankTables::record_collective(int owner, size_t row, const Args& args, Shared& shared) {
  collectives.owner.push(static_cast<uint8_t>(owner));
  collectives.row.push(static_cast<int32_t>(row));
  collectives.op.push(intern_value(args.op, shared));
  collectives.dtype.push(intern_value(args.dtype, shared));
  collectives.group.push(intern_value(args.group, shared));
  collectives.group_description.push(intern_value(args.group_description, shared));
  collectives.group_size.push(narrow(parse_whole(args.group_size, kNoId)));
  collectives.in_elements.push(parse_whole(args.in_elements, kNoId));
  collectives.out_elements.push(parse_whole(args.out_elements, kNoId));
  collectives.sequence.push(parse_whole(args.sequence, kNoId));
}

// The first device work says that this is no CPU-only file: from here on only collectives' operators matter.
void RankTables::drop_other_cpu_ops(Shared& shared) {
  std::vector<uint8_t> has_args(cpu_ops.ts.size(), 0);
  for (size_t i = 0; i < collectives.row.size(); ++i) has_args[collectives.row[i]] = 1;
  std::vector<int32_t> new_row(cpu_ops.ts.size(), -1);
  size_t kept = 0;
  for (size_t row = 0; row < new_row.size(); ++row) {
    if (!has_args[row] && !shared.names_a_collective(cpu_ops.name[row])) continue;
    new_row[row] = static_cast<int32_t>(kept);
    cpu_ops.ts.set(kept, cpu_ops.ts[row]);
    cpu_ops.dur.set(kept, cpu_ops.dur[row]);
    cpu_ops.name.set(kept, cpu_ops.name[row]);
    cpu_ops.thread.set(kept, cpu_ops.thread[row]);
    cpu_ops.external_id.set(kept++, cpu_ops.external_id[row]);
  }
  cpu_ops.ts.truncate(kept);
  cpu_ops.dur.truncate(kept);
  cpu_ops.name.truncate(kept);
  cpu_ops.thread.truncate(kept);
  cpu_ops.external_id.truncate(kept);
  for (size_t i = 0; i < collectives.row.size(); ++i) collectives.row.set(i, new_row[collectives.row[i]]);
}

}  // namespace fastverify::trace
