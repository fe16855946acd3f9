// Growing columns in blocks, so that a long file never holds a column twice, and a table of interned names.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fastverify::trace {

template <typename T>
class Column {
 public:
  void push(T value) {
    if (size_ == blocks_.size() * kBlock) blocks_.push_back(std::make_unique<T[]>(kBlock));
    blocks_.back()[size_++ % kBlock] = value;
  }

  T operator[](size_t row) const { return blocks_[row / kBlock][row % kBlock]; }
  void set(size_t row, T value) { blocks_[row / kBlock][row % kBlock] = value; }
  size_t size() const { return size_; }
  size_t num_bytes() const { return size_ * sizeof(T); }

  void truncate(size_t size) {
    size_ = size;
    blocks_.resize((size + kBlock - 1) / kBlock);
  }

  // Copies the rows to `out` and gives their blocks back one by one.
  void move_to(char* out) {
    for (size_t first = 0; first < size_; first += kBlock) {
      const size_t rows = size_ - first < kBlock ? size_ - first : kBlock;
      std::memcpy(out + first * sizeof(T), blocks_[first / kBlock].get(), rows * sizeof(T));
      blocks_[first / kBlock].reset();
    }
    blocks_.clear();
    size_ = 0;
  }

 private:
  static constexpr size_t kBlock = 16 * 1024;
  std::vector<std::unique_ptr<T[]>> blocks_;
  size_t size_ = 0;
};

class NameTable {
 public:
  int32_t intern(std::string_view text) {
    const auto found = ids_.find(text);
    if (found != ids_.end()) return found->second;
    names_.emplace_back(text);
    const int32_t id = static_cast<int32_t>(names_.size()) - 1;
    ids_.emplace(names_.back(), id);
    return id;
  }

  size_t size() const { return names_.size(); }
  const std::string& operator[](size_t id) const { return names_[id]; }

 private:
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace fastverify::trace
