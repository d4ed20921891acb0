// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

namespace pig {

/// A function of a library that the program has loaded; null where there is none.
template <typename Function>
Function loaded_function(const char* library_name, const char* name) {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

}  // namespace pig
