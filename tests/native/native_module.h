// SPDX-License-Identifier: Apache-2.0
//
// What the native module has for modules of tests alone.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

template <typename Function>
Function function_of_native_module(const char* name) {
  const auto native = pybind11::module_::import("pyinstrument_gpu.native._C");
  const pybind11::capsule capsule = native.attr(name);
  return reinterpret_cast<Function>(capsule.get_pointer());
}

/// Replaces the clock of the recordings that start from now on; nullptr: it is the machine's own.
inline void inject_clock(uint64_t (*function)()) {
  function_of_native_module<void (*)(uint64_t (*)())>("_tick_injector")(function);
}

/// The module forgets the devices that it has seen.
inline void detach_devices() { function_of_native_module<void (*)()>("_device_detacher")(); }
