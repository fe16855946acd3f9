// What can go wrong, by who can do something about it. module.cpp turns each into the Python error of the same meaning.
#pragma once

#include <stdexcept>

namespace fastverify {

// A rank is late, dead or gone.
struct RankMissingError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Ranks called different things.
struct CallMismatchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The operating system or the processor refused.
struct SystemRefusedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fastverify
