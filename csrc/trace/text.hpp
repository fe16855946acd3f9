// JSON text, read in place and forgivingly: where values end, never what they mean. A buffer may stop anywhere, so
// every function can answer "need more". Only damage that would misplace an end is an error; commas, control bytes,
// wrong escapes, bad UTF-8 and words such as inf or nan are not.
#pragma once

#include <cstdint>
#include <string_view>

namespace fastverify::trace {

enum class Found { kDone, kNeedMore, kBroken };

// Strict: a quote ends a string. Lenient: only a quote that something plausible follows, for unescaped quotes in text.
enum class Quotes { kStrict, kLenient };

constexpr int kMaxDepth = 64;

// One kind of harmless damage: how often, and where first.
struct Note {
  int64_t count = 0;
  const char* first = nullptr;

  void add(const char* where) {
    if (count++ == 0) first = where;
  }
};

// Damage that is read over, counted so that an answer can name it.
struct Notes {
  Note control_bytes;
  Note bad_utf8;
  Note bad_escapes;
  Note not_finite;
};

// How to read: the strictness and where to count.
struct Reading {
  Quotes quotes;
  Notes& notes;
};

inline bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }

inline const char* skip_space(const char* p, const char* end) {
  while (p < end && is_space(*p)) ++p;
  return p;
}

inline const char* skip_space_and_commas(const char* p, const char* end) {
  while (p < end && (is_space(*p) || *p == ',')) ++p;
  return p;
}

// Moves p, at an opening quote, behind the closing one. `content` gets the text between them, escapes untouched.
Found read_string(const char*& p, const char* end, const Reading& reading, std::string_view& content);

// Moves p behind the value that starts there: a string, a container or a bare word.
Found skip_value(const char*& p, const char* end, const Reading& reading);

// Moves p behind the closing bracket of a container whose opening bracket is already behind p.
Found skip_rest(const char*& p, const char* end, char closing, const Reading& reading);

// A value's text without surrounding quotes.
std::string_view unquoted(std::string_view value);

// Decimal microseconds, quoted or not, as whole nanoseconds. False for anything that is no finite number in range.
bool parse_us_as_ns(std::string_view value, int64_t& ns);

// A whole number, quoted or not; `missing` for anything else.
int64_t parse_whole(std::string_view value, int64_t missing);

}  // namespace fastverify::trace
