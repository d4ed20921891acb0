// SPDX-License-Identifier: Apache-2.0
#include "base/throwing.h"

#include <cxxabi.h>

#include <cstdlib>

namespace pig {
namespace {

/// More than the linker needs for a library's thread-local memory and its table of libraries.
constexpr size_t kThreadLocalBytes = 16 << 10;

}  // namespace

constinit thread_local bool is_prepared_to_throw = false;

bool has_memory(size_t bytes) noexcept {
  void* const memory = std::malloc(bytes);
  asm volatile("" : : "r"(memory) : "memory");  // or the compiler would leave both calls out
  std::free(memory);
  return memory != nullptr;
}

bool prepare_to_throw() noexcept {
  if (!has_memory(kThreadLocalBytes)) return false;
  const void* const globals = abi::__cxa_get_globals();
  asm volatile("" : : "r"(globals));  // likewise: the function is declared to have no effect
  return is_prepared_to_throw = true;
}

}  // namespace pig
