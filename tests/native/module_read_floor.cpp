// SPDX-License-Identifier: Apache-2.0
//
// The floor of the metrics' benchmarks: reads memory, with the widest loads there are, and makes
// nothing of it.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

namespace {

/// One function for each width of a vector: a template would not take the attribute of its caller.
#define READ_WITH(name, target, vector_bytes)                               \
  target uint64_t name(const char* data, size_t bytes) {                    \
    typedef uint64_t Vector __attribute__((vector_size(vector_bytes)));     \
    Vector folded[4] = {};                                                  \
    for (size_t at = 0; at + sizeof folded <= bytes; at += sizeof folded) { \
      for (size_t i = 0; i < 4; ++i) {                                      \
        Vector part;                                                        \
        std::memcpy(&part, data + at + i * sizeof part, sizeof part);       \
        folded[i] ^= part;                                                  \
      }                                                                     \
    }                                                                       \
    folded[0] ^= folded[1] ^ folded[2] ^ folded[3];                         \
    return folded[0][0];                                                    \
  }

READ_WITH(read_narrow, , 16)
#if defined(__x86_64__)
READ_WITH(read_wide, __attribute__((target("avx512f"))), 64)
#endif

uint64_t read_bytes(uintptr_t address, size_t bytes) {
  const auto* data = reinterpret_cast<const char*>(address);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_wide(data, bytes);
#endif
  return read_narrow(data, bytes);
}

}  // namespace

PYBIND11_MODULE(_read_floor, module, pybind11::mod_gil_not_used()) {
  module.def("read_bytes", &read_bytes, pybind11::arg("address"), pybind11::arg("bytes"));
}
