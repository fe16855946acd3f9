// Growing columns in blocks, so that a long file never holds a column twice, and a table of interned names.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fastverify::trace {

// Pages straight from the system, so that a freed block leaves the process at once instead of staying in the heap.
class Pages {
 public:
  static constexpr size_t kBytes = 256 * 1024;

  Pages() : address_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (address_ == MAP_FAILED) throw std::bad_alloc();
  }
  Pages(Pages&& other) noexcept : address_(std::exchange(other.address_, MAP_FAILED)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(address_, other.address_);
    return *this;
  }
  ~Pages() {
    if (address_ != MAP_FAILED) munmap(address_, kBytes);
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(address_);
  }

 private:
  void* address_;
};

template <typename T>
class Column {
 public:
  void push(T value) {
    if (size_ == blocks_.size() * kBlock) blocks_.emplace_back();
    blocks_.back().template as<T>()[size_++ % kBlock] = value;
  }

  T operator[](size_t row) const { return blocks_[row / kBlock].template as<T>()[row % kBlock]; }
  void set(size_t row, T value) { blocks_[row / kBlock].template as<T>()[row % kBlock] = value; }
  size_t size() const { return size_; }
  size_t num_bytes() const { return size_ * sizeof(T); }

  void truncate(size_t size) {
    size_ = size;
    while (blocks_.size() > (size + kBlock - 1) / kBlock) blocks_.pop_back();
  }

  // Copies the rows to `out` and gives their blocks back one by one.
  void move_to(char* out) {
    for (size_t first = 0; first < size_; first += kBlock) {
      const size_t rows = std::min(size_ - first, kBlock);
      const Pages block = std::move(blocks_[first / kBlock]);
      std::memcpy(out + first * sizeof(T), block.as<T>(), rows * sizeof(T));
    }
    blocks_.clear();
    size_ = 0;
  }

 private:
  static constexpr size_t kBlock = Pages::kBytes / sizeof(T);
  std::vector<Pages> blocks_;
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
