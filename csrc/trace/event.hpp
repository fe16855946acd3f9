// One event of a profiler file: its members as text, in any order, and which table they belong to.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "text.hpp"

namespace fastverify::trace {

// Must match Table in src/fastverify/trace/dialects.py.
enum class Table : int { kSkip, kKernel, kMemcpy, kMemset, kLaunch, kAnnotation, kDeviceAnnotation, kCpuOp, kUnknown };

// Category -> table. The last answer is kept: events of a category come in runs.
class Dialect {
 public:
  explicit Dialect(std::unordered_map<std::string, int> tables);
  Table find(std::string_view category) const;

 private:
  std::unordered_map<std::string, int> tables_;
  mutable std::string last_category_;
  mutable Table last_table_ = Table::kUnknown;
};

// Values as they stand in the text, quotes included where there are any; empty when the member is absent.
struct Event {
  std::string_view phase;
  std::string_view category;
  std::string_view name;
  std::string_view pid;
  std::string_view tid;
  std::string_view ts;
  std::string_view dur;
  std::string_view args;
  Table table = Table::kUnknown;
  bool starts_document = false;  // not an event: a key that only the top level of a file has
  bool lacks_end = false;        // lenient reading only: the next event began before this one ended
};

// True for a key that stands at the top level of a profiler file, beside the list of events.
bool is_document_key(std::string_view key);

// True for a key that an event has.
bool is_event_key(std::string_view key);

// Moves p, at an opening brace, behind the event. Skipped categories are not looked into.
Found read_event(const char*& p, const char* end, const Reading& reading, const Dialect& dialect, Event& event);

}  // namespace fastverify::trace
