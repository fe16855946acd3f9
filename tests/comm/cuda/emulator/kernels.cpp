// One CUDA source as a module of the emulated machine. Compiled with FV_SOURCE, FV_FUNCTIONS and the kernel's own macros.

#include "cuda.hpp"

namespace {

#include FV_SOURCE

#define FV_NAME(kernel) #kernel,
#define FV_START(kernel) [](const void* call) { kernel(*static_cast<const Call*>(call)); },
const char* const names[] = {FV_FUNCTIONS(FV_NAME)};
void (*const functions[])(const void*) = {FV_FUNCTIONS(FV_START)};

}  // namespace

extern "C" const emulator::Module* emulator_module() {
  static const emulator::Module module{names, functions, sizeof names / sizeof names[0], sizeof(Call)};
  return &module;
}
