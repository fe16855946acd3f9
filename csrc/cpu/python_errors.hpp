// Turns the errors of errors.hpp into those of fastverify.errors, for both Python modules.
#pragma once

#include <nanobind/nanobind.h>

#include "errors.hpp"

namespace fastverify {

template <class Error>
void translate_to(const char* python_name) {
  nanobind::register_exception_translator(
      [](const std::exception_ptr& thrown, void* python_type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Error& error) {
          PyErr_SetString(static_cast<PyObject*>(python_type), error.what());
        }
      },
      // Kept for the life of the process, like the module.
      nanobind::object(nanobind::module_::import_("fastverify.errors").attr(python_name)).release().ptr());
}

}  // namespace fastverify
