// See event.hpp.
#include "event.hpp"

#include <algorithm>
#include <array>

namespace fastverify::trace {
namespace {

std::string_view Event::*member_of(std::string_view key) {
  switch (key.size()) {
    case 2:
      return key == "ph" ? &Event::phase : key == "ts" ? &Event::ts : nullptr;
    case 3:
      return key == "cat" ? &Event::category : key == "pid" ? &Event::pid : key == "tid" ? &Event::tid
             : key == "dur" ? &Event::dur : nullptr;
    case 4:
      return key == "name" ? &Event::name : key == "args" ? &Event::args : nullptr;
    default:
      return nullptr;
  }
}

// Lenient: a key that lost its opening quote, such as `tid": 0`.
Found read_bare_key(const char*& p, const char* end, std::string_view& key) {
  const char* const begin = p;
  while (p < end && *p != '"' && !is_space(*p) && *p != ':' && *p != '{' && *p != '}') ++p;
  if (p == end) return Found::kNeedMore;
  key = {begin, static_cast<size_t>(p - begin)};
  if (key.empty()) return Found::kBroken;
  if (*p == '"') ++p;
  return Found::kDone;
}

Found read_key(const char*& p, const char* end, const Reading& reading, std::string_view& key) {
  Found found = Found::kBroken;
  if (*p == '"') {
    found = read_string(p, end, {Quotes::kStrict, reading.notes}, key);
  } else if (reading.quotes == Quotes::kLenient) {
    found = read_bare_key(p, end, key);
  }
  if (found != Found::kDone) return found;
  p = skip_space(p, end);
  if (p == end) return Found::kNeedMore;
  if (*p != ':') return Found::kBroken;
  p = skip_space(p + 1, end);
  return p == end ? Found::kNeedMore : Found::kDone;
}

// Flow arrows, instants and counters: never work, whatever their category.
bool is_arrow_or_mark(std::string_view phase) {
  return phase.size() == 3 && std::string_view("sftiIC").find(phase[1]) != std::string_view::npos;
}

bool ends_a_member(char c, Quotes quotes) { return c == ',' || c == '}' || (quotes == Quotes::kLenient && c == '"'); }

}  // namespace

Dialect::Dialect(std::unordered_map<std::string, int> tables) : tables_(std::move(tables)) {}

Table Dialect::find(std::string_view category) const {
  if (category == last_category_) return last_table_;
  last_category_ = category;
  const auto found = tables_.find(last_category_);
  last_table_ = found == tables_.end() ? Table::kUnknown : static_cast<Table>(found->second);
  return last_table_;
}

bool is_document_key(std::string_view key) {
  static constexpr std::array<std::string_view, 8> kKeys = {
      "traceEvents",       "schemaVersion", "deviceProperties",    "distributedInfo",
      "displayTimeUnit",   "traceName",     "baseTimeNanoseconds", "trace_id"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

bool is_event_key(std::string_view key) {
  return member_of(key) != nullptr || key == "id" || key == "s" || key == "bp";
}

Found read_event(const char*& p, const char* end, const Reading& reading, const Dialect& dialect, Event& event) {
  event = Event{};
  ++p;
  while (true) {
    p = skip_space_and_commas(p, end);
    if (p == end) return Found::kNeedMore;
    if (*p == '}') {
      ++p;
      return Found::kDone;
    }
    if (*p == '{' && reading.quotes == Quotes::kLenient && !event.phase.empty()) {
      event.lacks_end = true;
      return Found::kDone;
    }
    std::string_view key;
    Found found = read_key(p, end, reading, key);
    if (found != Found::kDone) return found;
    if (is_document_key(key)) {
      event.starts_document = true;
      return Found::kBroken;
    }
    const char* const value = p;
    found = skip_value(p, end, reading);
    if (found != Found::kDone) return found;
    const char* const next = skip_space(p, end);
    if (next == end) return Found::kNeedMore;
    if (!ends_a_member(*next, reading.quotes)) return Found::kBroken;
    const auto member = member_of(key);
    if (member == nullptr) continue;
    if (!(event.*member).empty()) return Found::kBroken;
    event.*member = {value, static_cast<size_t>(p - value)};
    if (member == &Event::phase && is_arrow_or_mark(event.phase)) {
      event.table = Table::kSkip;
      return skip_rest(p, end, '}', reading);
    }
    if (member == &Event::category) {
      event.table = dialect.find(unquoted(event.category));
      if (event.table == Table::kSkip) return skip_rest(p, end, '}', reading);
    }
  }
}

}  // namespace fastverify::trace
