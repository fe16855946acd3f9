// See text.hpp. Strings are crossed eight bytes at a time: most of a profiler file is inside quotes.
#include "text.hpp"

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

namespace fastverify::trace {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101ull;
constexpr uint64_t kHighs = 0x8080808080808080ull;
constexpr size_t kMaxLenientString = 64 * 1024;
constexpr int64_t kMaxUs = INT64_MAX / 1000 - 1;

uint64_t zero_bytes(uint64_t word) { return (word - kOnes) & ~word & kHighs; }

// Marks of bytes that a string of plain ASCII text does not have: controls, backslashes and everything above 127.
uint64_t unusual_bytes(uint64_t word) {
  return (word & kHighs) | ((word - kOnes * 0x20) & ~word & kHighs) | zero_bytes(word ^ (kOnes * '\\'));
}

bool is_unusual(char c) { return static_cast<unsigned char>(c) < 0x20 || (c & 0x80) != 0 || c == '\\'; }

// The next quote; sets `unusual` when something on the way deserves a closer look. The lowest mark of zero_bytes is
// exact, which on a little-endian machine is the first one in memory.
const char* find_quote(const char* p, const char* end, bool& unusual) {
  uint64_t seen = 0;
  while (end - p >= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    const uint64_t quotes = zero_bytes(word ^ (kOnes * '"'));
    if (quotes != 0) {
      const int bits = __builtin_ctzll(quotes) & ~7;
      seen |= unusual_bytes(word) & ((1ull << bits) - 1);
      unusual |= seen != 0;
      return p + bits / 8;
    }
    seen |= unusual_bytes(word);
    p += 8;
  }
  unusual |= seen != 0;
  for (; p < end && *p != '"'; ++p) unusual |= is_unusual(*p);
  return p;
}

// Length of the valid UTF-8 sequence at p, 0 for none.
int utf8_length(const char* p, const char* end) {
  const auto byte = [&](int i) { return static_cast<unsigned char>(p[i]); };
  int length = 0;
  if (byte(0) < 0x80) length = 1;
  else if (byte(0) >= 0xC2 && byte(0) < 0xE0) length = 2;
  else if (byte(0) >= 0xE0 && byte(0) < 0xF0) length = 3;
  else if (byte(0) >= 0xF0 && byte(0) < 0xF5) length = 4;
  if (length == 0 || end - p < length) return 0;
  for (int i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (length == 3 && ((byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F))) return 0;
  if (length == 4 && ((byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F))) return 0;
  return length;
}

// One count per string and kind.
void note_unusual(std::string_view content, Notes& notes) {
  const char* control = nullptr;
  const char* utf8 = nullptr;
  const char* escape = nullptr;
  const char* const end = content.data() + content.size();
  for (const char* p = content.data(); p < end;) {
    if (static_cast<unsigned char>(*p) < 0x20 && control == nullptr) control = p;
    if (*p == '\\') {
      if (p + 1 < end && std::strchr("\"\\/bfnrtu", p[1]) == nullptr && escape == nullptr) escape = p;
      p += 2;
      continue;
    }
    const int length = utf8_length(p, end);
    if (length == 0 && utf8 == nullptr) utf8 = p;
    p += length == 0 ? 1 : length;
  }
  if (control != nullptr) notes.control_bytes.add(control);
  if (utf8 != nullptr) notes.bad_utf8.add(utf8);
  if (escape != nullptr) notes.bad_escapes.add(escape);
}

bool is_escaped(const char* quote, const char* begin) {
  const char* p = quote;
  while (p > begin && p[-1] == '\\') --p;
  return ((quote - p) & 1) != 0;
}

bool ends_a_token(char c) { return c == ',' || c == '}' || c == ']' || c == ':'; }

// After a quote that no comma follows: `"key":` on what comes next means that only the comma is missing.
bool starts_a_member(const char* p, const char* end) {
  if (p >= end || *p != '"') return false;
  bool ignored = false;
  const char* close = find_quote(p + 1, end, ignored);
  if (close == end || close == p + 1 || close - p > 24) return false;
  const char* colon = skip_space(close + 1, end);
  return colon < end && *colon == ':';
}

// Bare words end at a comma, colon, quote, closing bracket or white space.
constexpr std::array<bool, 256> make_enders() {
  std::array<bool, 256> enders{};
  for (int c = 0; c <= ' '; ++c) enders[c] = true;
  for (const char c : {',', ':', '"', '}', ']'}) enders[static_cast<unsigned char>(c)] = true;
  return enders;
}

constexpr std::array<bool, 256> kEnders = make_enders();

enum Mark : unsigned char { kPlain, kQuote, kOpen, kClose, kWord };

constexpr std::array<unsigned char, 256> make_marks() {
  std::array<unsigned char, 256> marks{};
  marks['"'] = kQuote;
  marks['{'] = marks['['] = kOpen;
  marks['}'] = marks[']'] = kClose;
  marks['n'] = marks['N'] = marks['i'] = marks['I'] = kWord;
  return marks;
}

constexpr std::array<unsigned char, 256> kMarks = make_marks();

bool starts_with(const char* p, const char* end, std::string_view word) {
  return static_cast<size_t>(end - p) >= word.size() && std::memcmp(p, word.data(), word.size()) == 0;
}

// At an i or n outside strings: inf, nan and their spellings are no JSON. A cut word is judged when the rest is here.
const char* skip_word(const char* p, const char* end, Notes& notes) {
  if (starts_with(p, end, "null")) return p + 4;
  for (const std::string_view word : {"inf", "Inf", "nan", "NaN"}) {
    if (!starts_with(p, end, word)) continue;
    notes.not_finite.add(p);
    p += word.size();
    while (p < end && ((*p >= 'a' && *p <= 'z') || *p == 'N')) ++p;
    return p;
  }
  return p + 1;
}

// An event inside an event: a closing brace is missing somewhere before.
bool starts_an_event(const char* p, const char* end) {
  p = skip_space(p, end);
  return end - p >= 4 && std::memcmp(p, "\"ph\"", 4) == 0;
}

}  // namespace

Found read_string(const char*& p, const char* end, const Reading& reading, std::string_view& content) {
  const char* const begin = p + 1;
  bool unusual = false;
  for (const char* quote = find_quote(begin, end, unusual); quote < end; quote = find_quote(quote + 1, end, unusual)) {
    if (is_escaped(quote, begin)) continue;
    if (reading.quotes == Quotes::kLenient) {
      if (static_cast<size_t>(quote - begin) > kMaxLenientString) return Found::kBroken;
      const char* const next = skip_space(quote + 1, end);
      if (next == end) return Found::kNeedMore;
      if (!ends_a_token(*next) && !starts_a_member(next, end)) continue;
    }
    content = {begin, static_cast<size_t>(quote - begin)};
    if (unusual) note_unusual(content, reading.notes);
    p = quote + 1;
    return Found::kDone;
  }
  return Found::kNeedMore;
}

Found skip_rest(const char*& p, const char* end, char closing, const Reading& reading) {
  char stack[kMaxDepth];
  int depth = 0;
  stack[0] = closing;
  std::string_view content;
  while (true) {
    while (p < end && kMarks[static_cast<unsigned char>(*p)] == kPlain) ++p;
    if (p == end) return Found::kNeedMore;
    switch (kMarks[static_cast<unsigned char>(*p)]) {
      case kQuote: {
        const Found found = read_string(p, end, reading, content);
        if (found != Found::kDone) return found;
        const char* const next = skip_space(p, end);
        if (next == end) return Found::kNeedMore;
        if (!ends_a_token(*next) && reading.quotes == Quotes::kStrict) return Found::kBroken;
        p = next;
        break;
      }
      case kOpen:
        if (++depth == kMaxDepth) return Found::kBroken;
        stack[depth] = *p == '{' ? '}' : ']';
        ++p;
        if (stack[depth] == '}' && starts_an_event(p, end)) return Found::kBroken;
        break;
      case kWord:
        p = skip_word(p, end, reading.notes);
        break;
      default:
        if (*p != stack[depth]) return Found::kBroken;
        ++p;
        if (depth-- == 0) return Found::kDone;
    }
  }
}

Found skip_value(const char*& p, const char* end, const Reading& reading) {
  if (p == end) return Found::kNeedMore;
  if (*p == '"') {
    std::string_view content;
    return read_string(p, end, reading, content);
  }
  if (*p == '{' || *p == '[') {
    const char closing = *p == '{' ? '}' : ']';
    ++p;
    return skip_rest(p, end, closing, reading);
  }
  const char* const begin = p;
  while (p < end && !kEnders[static_cast<unsigned char>(*p)]) ++p;
  if (p == end) return Found::kNeedMore;
  if (p == begin) return Found::kBroken;
  const char* const sign = begin + (*begin == '-');
  if (kMarks[static_cast<unsigned char>(*sign)] == kWord) skip_word(sign, p, reading.notes);
  return Found::kDone;
}

std::string_view unquoted(std::string_view value) {
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  return value;
}

bool parse_us_as_ns(std::string_view value, int64_t& ns) {
  value = unquoted(value);
  const char* p = value.data();
  const char* const end = p + value.size();
  const bool is_negative = p < end && *p == '-';
  if (is_negative) ++p;
  const char* const digits = p;
  int64_t us = 0;
  while (p < end && *p >= '0' && *p <= '9' && us <= kMaxUs / 10 - 1) us = us * 10 + (*p++ - '0');
  int64_t below_us = 0;
  bool is_plain = p > digits;
  if (is_plain && p < end && *p == '.') {
    int64_t scale = 100;
    const char* const fraction = ++p;
    for (; p < end && *p >= '0' && *p <= '9'; ++p, scale /= 10) below_us += (*p - '0') * scale;
    if (p - fraction > 3 && fraction[3] >= '5') ++below_us;
  }
  is_plain = is_plain && p == end;
  if (is_plain) {
    ns = (us * 1000 + below_us) * (is_negative ? -1 : 1);
    return true;
  }
  const std::string copy(value);
  char* stop = nullptr;
  const double number = std::strtod(copy.c_str(), &stop);
  if (copy.empty() || *stop != '\0' || !std::isfinite(number) || std::fabs(number) > static_cast<double>(kMaxUs) / 10) {
    return false;
  }
  ns = std::llround(number * 1000.0);
  return true;
}

int64_t parse_whole(std::string_view value, int64_t missing) {
  value = unquoted(value);
  if (value.empty() || value.size() > 18) return missing;
  const bool is_negative = value.front() == '-';
  if (is_negative) value.remove_prefix(1);
  if (value.empty()) return missing;
  int64_t number = 0;
  for (const char c : value) {
    if (c < '0' || c > '9') return missing;
    number = number * 10 + (c - '0');
  }
  return is_negative ? -number : number;
}

}  // namespace fastverify::trace
