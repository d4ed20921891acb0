// SPDX-License-Identifier: Apache-2.0
//
// Passes for PyTorch's library libtorch_cpu.so, in a process that doesn't load PyTorch: its current
// device is what the test says.
#include <cstdint>

#define INJECT_EXPORT __attribute__((visibility("default")))

extern "C" {

INJECT_EXPORT int32_t inject_current_device = 0;

INJECT_EXPORT int32_t aoti_torch_get_current_device_index(int32_t* device) {
  *device = inject_current_device;
  return 0;
}

}  // extern "C"
