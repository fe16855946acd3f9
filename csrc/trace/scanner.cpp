// See scanner.hpp.
#include "scanner.hpp"

#include <algorithm>
#include <cstring>

namespace fastverify::trace {
namespace {

constexpr size_t kMaxEventBytes = 4 << 20;   // Arbitrary: no event comes near; a lost quote must not swallow the file
constexpr size_t kMaxFactBytes = 64 << 20;   // Arbitrary: far above the process groups of the largest jobs
constexpr size_t kExampleBytes = 60;
constexpr size_t kLookBehind = 64;           // longest text that says "an event or a top-level key begins here"
constexpr size_t kMaxFacts = 64 * 1024;      // Arbitrary: a file of process names must not fill the memory

// `"key":` at p? Used to find solid ground after damage.
std::string_view key_at(const char* p, const char* end) {
  if (p >= end || *p != '"') return {};
  const char* close = p + 1;
  while (close < end && close - p <= 24 && *close != '"') ++close;
  if (close >= end || *close != '"') return {};
  const char* const colon = skip_space(close + 1, end);
  if (colon >= end || *colon != ':') return {};
  return {p + 1, static_cast<size_t>(close - p - 1)};
}

bool begins_event(const char* p, const char* end) {
  if (*p != '{') return false;
  const std::string_view key = key_at(skip_space(p + 1, end), end);
  return !key.empty() && is_event_key(key);
}

bool begins_document(const char* p, const char* end) {
  return *p == '{' && is_document_key(key_at(skip_space(p + 1, end), end));
}

std::string label_of(std::string_view pid) {
  pid = unquoted(pid);
  if (pid.empty() || pid.front() != '[') return {};
  const size_t close = pid.find(']');
  return close == std::string_view::npos ? std::string() : std::string(pid.substr(1, close - 1));
}

}  // namespace

Scanner::Scanner(Dialect dialect, std::vector<std::string> collective_words) : dialect_(std::move(dialect)) {
  shared.collective_words = std::move(collective_words);
}

void Scanner::feed(const char* data, size_t size) {
  for (auto& [name, fault] : faults) {
    const size_t more = std::min(fault.num_bytes_to_come, size);
    fault.example.append(data, more);
    fault.num_bytes_to_come -= more;
  }
  buffer_.insert(buffer_.end(), data, data + size);
  run();
}

void Scanner::finish() {
  buffer_.push_back('\n');  // lets a bare word at the very end be complete
  is_final_ = true;
  run();
  if (state_ == State::kLost) {
    const auto last = std::find_if(buffer_.rbegin(), buffer_.rend(), [](char c) { return !is_space(c); });
    if (last != buffer_.rend() && (*last == '}' || *last == ']')) state_ = State::kAfter;
  }
  const bool is_open_end = envelope_ == Envelope::kNone && state_ == State::kEvents && p_ == end_;
  if (state_ != State::kAfter && state_ != State::kStart && !is_open_end) add_fault("truncated", end_);
  buffer_ = {};
}

void Scanner::run() {
  p_ = buffer_.data();
  end_ = p_ + buffer_.size();
  while (p_ < end_ && step()) {
  }
  const size_t used = static_cast<size_t>(p_ - buffer_.data());
  if (is_final_) return;
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(used));
  buffer_offset_ += static_cast<int64_t>(used);
}

// False: more text is needed.
bool Scanner::step() {
  switch (state_) {
    case State::kStart:
      return step_start();
    case State::kTopLevel:
      return step_top_level();
    case State::kEvents:
      return step_events();
    case State::kLost:
      return step_lost();
    default:
      return step_after();
  }
}

bool Scanner::step_start() {
  p_ = skip_space(p_, end_);
  if (p_ < end_ && static_cast<unsigned char>(*p_) == 0xEF) {  // byte order mark
    p_ = std::min(p_ + 3, end_);
    return true;
  }
  if (!is_final_ && static_cast<size_t>(end_ - p_) < kLookBehind) return false;
  if (p_ == end_) return false;
  if (begins_event(p_, end_)) {
    open_document(Envelope::kNone, State::kEvents);
    return true;
  }
  if (*p_ == '{' || *p_ == '[') {
    if (*p_++ == '{') {
      open_document(Envelope::kObject, State::kTopLevel);
    } else {
      open_document(Envelope::kList, State::kEvents);
    }
    return true;
  }
  open_document(Envelope::kNone, State::kEvents);
  return get_lost("text that is no event");
}

bool Scanner::step_top_level() {
  p_ = skip_space_and_commas(p_, end_);
  if (p_ == end_) return false;
  if (*p_ == '}') {
    ++p_;
    close_document();
    return true;
  }
  return read_fact();
}

// One key and value of the top level; the list of events is entered, everything else is kept as text.
bool Scanner::read_fact() {
  const char* p = p_;
  std::string_view key;
  const Reading reading{Quotes::kStrict, notes_};
  Found found = *p == '"' ? read_string(p, end_, reading, key) : Found::kBroken;
  if (found == Found::kDone) {
    p = skip_space(p, end_);
    found = p == end_ ? Found::kNeedMore : *p == ':' ? Found::kDone : Found::kBroken;
  }
  if (found == Found::kDone) {
    p = skip_space(p + 1, end_);
    if (p < end_ && *p == '[' && key == "traceEvents") {
      p_ = p + 1;
      is_first_ = true;
      commas_ = 0;
      state_ = State::kEvents;
      return true;
    }
    const char* const value = p;
    found = skip_value(p, end_, reading);
    if (found == Found::kDone) {
      add_fact("", key, {value, static_cast<size_t>(p - value)});
      p_ = p;
      return true;
    }
  }
  if (found == Found::kNeedMore && static_cast<size_t>(end_ - p_) < kMaxFactBytes) return false;
  return get_lost("top level that cannot be read");
}

bool Scanner::step_events() {
  for (; p_ < end_ && (is_space(*p_) || *p_ == ','); ++p_) commas_ += *p_ == ',';
  if (p_ == end_) return false;
  if (*p_ == '{') return read_one_event();
  if (*p_ == ']') {
    if (commas_ > 0) add_fault("comma too many", p_);
    ++p_;
    if (envelope_ == Envelope::kList) {
      close_document();
    } else {
      state_ = State::kTopLevel;
    }
    return true;
  }
  if (!is_final_ && static_cast<size_t>(end_ - p_) < kLookBehind) return false;
  if (is_document_key(key_at(p_, end_))) {
    add_fault("bracket missing", p_);
    state_ = State::kTopLevel;
    return true;
  }
  return get_lost("text that is no event");
}

bool Scanner::read_one_event() {
  if (!is_final_ && static_cast<size_t>(end_ - p_) < kLookBehind) return false;
  const char* p = p_;
  Event event;
  const Notes before = notes_;
  Found found = try_event(p, Quotes::kStrict, event);
  if (event.starts_document) {
    outer_documents_.emplace_back(document_, envelope_);
    add_fault("document inside another one", p_++);
    open_document(Envelope::kObject, State::kTopLevel);
    return true;
  }
  const bool may_grow = !is_final_ && static_cast<size_t>(end_ - p_) < kMaxEventBytes;
  if (found == Found::kNeedMore && may_grow) {
    notes_ = before;
    return false;
  }
  if (found != Found::kDone) {
    notes_ = before;
    p = p_;
    found = try_event(p, Quotes::kLenient, event);
    if (found == Found::kNeedMore && may_grow) {
      notes_ = before;
      return false;
    }
    if (found != Found::kDone || (event.ts.empty() && event.table != Table::kSkip)) {
      notes_ = before;
      const bool is_cut = is_final_ && found == Found::kNeedMore;
      return get_lost(is_cut ? "event cut off" : "event that cannot be read");
    }
    add_fault(event.lacks_end ? "brace missing" : "quote or comma wrong inside an event", p_);
  }
  count_commas();
  accept(event);
  count_notes();
  p_ = p;
  return true;
}

void Scanner::count_commas() {
  const int wanted = is_first_ ? 0 : 1;
  if (commas_ < wanted && envelope_ != Envelope::kNone) add_fault("comma missing", p_);
  if (commas_ > wanted) add_fault("comma too many", p_);
  is_first_ = false;
  commas_ = 0;
}

Found Scanner::try_event(const char*& p, Quotes quotes, Event& event) {
  const char* const limit = std::min(end_, p + kMaxEventBytes);
  return read_event(p, limit, {quotes, notes_}, dialect_, event);
}

// Looks for the next place that begins an event, a document or a top-level key. Leaves a tail that may be half of one.
bool Scanner::step_lost() {
  if (!is_final_ && static_cast<size_t>(end_ - p_) <= kLookBehind) return false;
  const char* const limit = is_final_ ? end_ : end_ - kLookBehind;
  for (const char* p = p_; p < limit; ++p) {
    if (*p == '{' && (begins_event(p, end_) || begins_document(p, end_))) {
      p_ = p;
      is_first_ = true;
      commas_ = 0;
      state_ = State::kEvents;
      return true;
    }
    if (*p == '"' && is_document_key(key_at(p, end_))) {
      p_ = p;
      state_ = State::kTopLevel;
      return true;
    }
  }
  p_ = limit;
  return false;
}

bool Scanner::step_after() {
  while (p_ < end_ && (is_space(*p_) || *p_ == ',')) ++p_;
  if (p_ == end_) return false;
  if (*p_ == '{' || *p_ == '[') {
    add_fault("second document in the file", p_);
    state_ = State::kStart;
    return true;
  }
  return get_lost("text behind the end of the document");
}

// Always moves on, so that the same place is not found again.
bool Scanner::get_lost(const char* fault) {
  add_fault(fault, p_++);
  state_ = State::kLost;
  return true;
}

void Scanner::open_document(Envelope envelope, State state) {
  document_ = num_documents++;
  envelope_ = envelope;
  state_ = state;
  is_first_ = true;
  commas_ = 0;
}

// Behind an inner document the one that it cut open goes on.
void Scanner::close_document() {
  state_ = State::kAfter;
  if (outer_documents_.empty()) return;
  document_ = outer_documents_.back().first;
  envelope_ = outer_documents_.back().second;
  outer_documents_.pop_back();
  state_ = State::kLost;
}

void Scanner::accept(const Event& event) {
  ++num_events;
  if (event.table == Table::kSkip) return;
  const std::string_view phase = unquoted(event.phase);
  if (phase == "M") return record_process_fact(event);
  Event known = event;
  if (event.category.empty()) {  // the exporter before Kineto names the side in the process id
    const std::string_view pid = unquoted(event.pid);
    known.table = pid == "CUDA functions" ? Table::kKernel : pid == "CPU functions" ? Table::kCpuOp : Table::kUnknown;
    if (known.table == Table::kUnknown && phase != "X") return;
  }
  if (known.table == Table::kUnknown || phase != "X") {
    const std::string category(unquoted(event.category));
    ++unread_categories[phase == "X" ? category : category + " (phase " + std::string(phase) + ")"];
    return;
  }
  if (!event.ts.empty() && event.ts.front() == '"') add_fault("time as text", event.ts.data());
  if (!rank_of(event.pid).record(known, shared)) add_fault("time that is no number", event.name.data());
}

void Scanner::record_process_fact(const Event& event) {
  const std::string_view name = unquoted(event.name);
  if (name == "process_name" || name == "process_labels") add_fact(label_of(event.pid), name, event.args);
}

void Scanner::add_fact(std::string label, std::string_view key, std::string_view text) {
  if (facts.size() == kMaxFacts) return add_fault("more facts than are kept", text.data());
  facts.push_back({document_, std::move(label), std::string(key), std::string(text)});
}

RankTables& Scanner::rank_of(std::string_view pid) {
  const bool is_merged = pid.size() > 2 && pid[1] == '[';
  std::string label = is_merged ? label_of(pid) : std::string();
  if (last_rank_ != nullptr && last_rank_->document == document_ && last_rank_->label == label) return *last_rank_;
  for (const auto& rank : ranks) {
    if (rank->document == document_ && rank->label == label) return *(last_rank_ = rank.get());
  }
  ranks.push_back(std::make_unique<RankTables>(document_, std::move(label)));
  return *(last_rank_ = ranks.back().get());
}

// Notes hold places in the buffer, so they become faults before it moves.
void Scanner::count_notes() {
  const auto move = [this](const char* name, Note& note) {
    if (note.count == 0) return;
    add_fault(name, note.first);
    faults[name].count += note.count - 1;
    note = Note{};
  };
  move("control character in text", notes_.control_bytes);
  move("bad UTF-8", notes_.bad_utf8);
  move("wrong escape in text", notes_.bad_escapes);
  move("number that is inf or nan", notes_.not_finite);
}

void Scanner::add_fault(const char* name, const char* where) {
  Fault& fault = faults[name];
  if (fault.count++ > 0) return;
  const char* const stop = std::min(end_, where + kExampleBytes);
  fault.example = "byte " + std::to_string(buffer_offset_ + (where - buffer_.data())) + ": ";
  if (where < stop) fault.example.append(where, stop);
  fault.num_bytes_to_come = kExampleBytes - static_cast<size_t>(std::max<ptrdiff_t>(stop - where, 0));
}

}  // namespace fastverify::trace
