// One CUDA source as a module of the emulated machine. Compiled with FV_SOURCE, FV_FUNCTIONS and the kernel's own macros.
//
// The unnamed namespace gives every __shared__ variable internal linkage, so that all of them share one section.

#include "cuda.hpp"

namespace {

#include FV_SOURCE

#define FV_NAME(kernel) #kernel,
#define FV_START(kernel) [](const void* call) { kernel(*static_cast<const Call*>(call)); },
const char* const names[] = {FV_FUNCTIONS(FV_NAME)};
void (*const functions[])(const void*) = {FV_FUNCTIONS(FV_START)};

}  // namespace

// Given by the linker where the section exists.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_fv_shared[], __stop_fv_shared[];

extern "C" const emulator::Module* emulator_module() {
  static const emulator::Module module{names,
                                       functions,
                                       sizeof names / sizeof names[0],
                                       sizeof(Call),
                                       __start_fv_shared,
                                       static_cast<u64>(__stop_fv_shared - __start_fv_shared)};
  return &module;
}
