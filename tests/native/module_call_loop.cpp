// SPDX-License-Identifier: Apache-2.0
//
// What a C function costs its caller, found without Python in between: for the driver's calls,
// which take no longer than calling anything from Python does.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace {

constexpr size_t kMaxArguments = 11;  // of cuLaunchKernel
using Arguments = std::array<uint64_t, kMaxArguments>;
// Arguments too many do no harm in the calling conventions of Linux, nor do wider ones.
using NativeFunction = int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                               uint64_t, uint64_t, uint64_t, uint64_t);

uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

int call(NativeFunction function, const Arguments& a) {
  return function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
}

std::pair<NativeFunction, Arguments> callable(uint64_t address,
                                              const std::vector<uint64_t>& given) {
  if (address == 0) throw std::invalid_argument("there is no function at address 0");
  if (given.size() > kMaxArguments) throw std::invalid_argument("at most 11 arguments");
  Arguments arguments{};
  std::copy(given.begin(), given.end(), arguments.begin());
  return {reinterpret_cast<NativeFunction>(address), arguments};
}

/// Of all calls together.
uint64_t total_ns(uint64_t address, const std::vector<uint64_t>& given, uint64_t uses) {
  const auto [function, arguments] = callable(address, given);
  const py::gil_scoped_release release;
  const uint64_t begin = monotonic_ns();
  for (uint64_t i = 0; i < uses; ++i) call(function, arguments);
  return monotonic_ns() - begin;
}

/// Of each call, with one reading of the clock.
std::vector<uint64_t> each_ns(uint64_t address, const std::vector<uint64_t>& given, uint64_t uses) {
  const auto [function, arguments] = callable(address, given);
  std::vector<uint64_t> durations(uses);
  const py::gil_scoped_release release;
  uint64_t before = monotonic_ns();
  for (uint64_t& duration : durations) {
    call(function, arguments);
    const uint64_t after = monotonic_ns();
    duration = after - before;
    before = after;
  }
  return durations;
}

/// What one call answers: whether those that are timed succeed.
int answer(uint64_t address, const std::vector<uint64_t>& given) {
  const auto [function, arguments] = callable(address, given);
  return call(function, arguments);
}

}  // namespace

PYBIND11_MODULE(_call_loop, module, pybind11::mod_gil_not_used()) {
  module.def("total_ns", &total_ns, py::arg("address"), py::arg("arguments"), py::arg("uses"));
  module.def("each_ns", &each_ns, py::arg("address"), py::arg("arguments"), py::arg("uses"));
  module.def("answer", &answer, py::arg("address"), py::arg("arguments"));
}
