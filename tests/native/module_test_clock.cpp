// SPDX-License-Identifier: Apache-2.0
//
// A clock that a Python test sets: recordings that start while it is installed take their time from
// it.
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace py = pybind11;

namespace {

std::atomic<uint64_t> now_ns{0};

uint64_t read() { return now_ns.load(); }

void inject(uint64_t (*function)()) {
  const auto native = py::module_::import("pyinstrument_gpu._C");
  const py::capsule capsule = native.attr("_tick_injector");
  reinterpret_cast<void (*)(uint64_t (*)())>(capsule.get_pointer())(function);
}

}  // namespace

PYBIND11_MODULE(_test_clock, module, pybind11::mod_gil_not_used()) {
  module.def("install", [] { inject(read); });
  module.def("remove", [] { inject(nullptr); });
  module.def("set_ns", [](uint64_t ns) { now_ns = ns; });
  module.def("advance_ns", [](uint64_t ns) { now_ns += ns; });
}
