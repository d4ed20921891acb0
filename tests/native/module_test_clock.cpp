// SPDX-License-Identifier: Apache-2.0
//
// A clock that a Python test sets: recordings that start while it is installed take their time from
// it.
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

#include "native_module.h"

namespace {

std::atomic<uint64_t> now_ns{0};

uint64_t read() { return now_ns.load(); }

}  // namespace

PYBIND11_MODULE(_test_clock, module, pybind11::mod_gil_not_used()) {
  module.def("install", [] { inject_clock(read); });
  module.def("remove", [] { inject_clock(nullptr); });
  module.def("set_ns", [](uint64_t ns) { now_ns = ns; });
  module.def("advance_ns", [](uint64_t ns) { now_ns += ns; });
}
