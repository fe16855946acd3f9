// A profiler file, fed in pieces of any size, into the tables of its ranks. Memory: the tables and one piece.
//
// Text is read strictly first. An event that cannot be read is tried leniently, and if that fails too the search goes
// on for the next place that looks like an event: what is lost is counted with its place, what follows is kept. A
// second document inside or behind the first one is read as a rank of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "event.hpp"
#include "tables.hpp"

namespace fastverify::trace {

struct Fault {
  int64_t count = 0;
  std::string example;
  size_t num_bytes_to_come = 0;  // of the example, beyond the text fed so far
};

// A top-level value that is not the list of events, or a process name or label.
struct Fact {
  int document;
  std::string label;  // of the rank inside a merged file, for process names and labels
  std::string key;
  std::string text;
};

class Scanner {
 public:
  Scanner(Dialect dialect, std::vector<std::string> collective_words);

  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  void feed(const char* data, size_t size);
  void finish();

  // Read after finish.
  std::vector<std::unique_ptr<RankTables>> ranks;
  std::vector<Fact> facts;
  std::map<std::string, Fault> faults;
  std::map<std::string, int64_t> unread_categories;
  Shared shared;
  int64_t num_events = 0;
  int num_documents = 0;

 private:
  enum class State { kStart, kTopLevel, kEvents, kLost, kAfter };
  enum class Envelope { kObject, kList, kNone };  // what the events lie in; none: one behind the other, or unknown

  void run();
  bool step();
  bool step_start();
  bool step_top_level();
  bool step_events();
  bool step_lost();
  bool step_after();

  bool read_fact();
  bool read_one_event();
  Found try_event(const char*& p, Quotes quotes, Event& event);
  void accept(const Event& event);
  void open_document(Envelope envelope, State state);
  void count_commas();
  void close_document();
  bool get_lost(const char* fault);
  void record_process_fact(const Event& event);
  void add_fact(std::string label, std::string_view key, std::string_view text);
  void count_notes();
  void add_fault(const char* name, const char* where);
  RankTables& rank_of(std::string_view pid);

  Dialect dialect_;
  std::vector<char> buffer_;
  const char* p_ = nullptr;
  const char* end_ = nullptr;
  int64_t buffer_offset_ = 0;  // of buffer_[0] in the file
  State state_ = State::kStart;
  bool is_final_ = false;
  Envelope envelope_ = Envelope::kObject;
  bool is_first_ = true;  // no event yet since the list began or solid ground was found again
  int commas_ = 0;        // since the last event
  std::vector<std::pair<int, Envelope>> outer_documents_;  // cut open by the one being read
  int document_ = -1;
  Notes notes_;
  RankTables* last_rank_ = nullptr;
  std::string last_label_;
};

}  // namespace fastverify::trace
