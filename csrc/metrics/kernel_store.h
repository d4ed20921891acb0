// SPDX-License-Identifier: Apache-2.0
//
// The kernels of metric_kernel.cu as a driver has loaded them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/driver.h"
#include "metrics/kernel_image.h"
#include "metrics/metric_kernel.h"

namespace pig::metrics {

/// The name of a kernel in metric_kernel.cu.
std::string kernel_name(Format logits_format, RowsBy rows_by);

/// The kernels for one device, or why there are none.
struct Kernels {
  std::array<std::array<cuda::Kernel, kRowsByCount>, kRealFormats> update{};
  cuda::Kernel scalar = nullptr;
  std::string error;

  cuda::Kernel update_of(Format logits_format, RowsBy rows_by) const {
    return update[static_cast<size_t>(logits_format - kFloat64)][static_cast<size_t>(rows_by)];
  }
};

/// Loads the kernels for each device at their first use there: from the image that nvcc made, else,
/// where there is none or the driver refuses it, from what NVRTC makes of the source. Thread-safe.
class KernelStore {
 public:
  using FindDriver = const cuda::Driver* (*)();
  using Compile = cuda::CompiledCode (*)(int major, int minor);

  /// That of the process. Never destroyed: kernels are in use until the end.
  static KernelStore& instance();

  /// With others than the process's, for tests. The driver is asked for at the first use: by then
  /// the program has initialised CUDA.
  KernelStore(FindDriver find_driver, std::string_view image, Compile compile)
      : find_driver_(find_driver), image_(image), compile_(compile) {}

  /// Null where there is none that kernels can be launched by; then `error()` says why.
  const cuda::Driver* driver();
  std::string error();

  /// The device's context has to be current. May take seconds at the first call for a device, and
  /// loads code: not during a capture.
  const Kernels& kernels_on(int device);

  /// For tests, where the driver forgets what it has loaded. Accumulators of before must not be
  /// used any more.
  void forget();

 private:
  Kernels load_image(const cuda::Driver& driver) const;
  Kernels load_compiled(const cuda::Driver& driver, int device);

  const FindDriver find_driver_;
  const std::string_view image_;
  const Compile compile_;
  std::mutex mutex_;
  const cuda::Driver* driver_ = nullptr;
  std::string error_;
  std::map<int, std::unique_ptr<const Kernels>> of_devices_;
  std::map<std::pair<int, int>, cuda::CompiledCode> compiled_;  ///< by compute capability
};

}  // namespace pig::metrics
