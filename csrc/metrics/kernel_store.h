// SPDX-License-Identifier: Apache-2.0
//
// The kernels of metric_kernel.cu as a driver has loaded them.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/driver.h"
#include "metrics/metric_device.h"
#include "metrics/metric_kernel.h"

namespace pig::metrics {

/// The name of a kernel in metric_kernel.cu.
std::string kernel_name(bool cross_entropy, Format logits_format, RowsBy rows_by);

/// The kernels for one device, or why there are none.
struct Kernels {
  using ByRows = std::array<cuda::Kernel, kRowsByCount>;
  using ByFormat = std::array<ByRows, kRealFormats>;
  std::array<ByFormat, 2> update{};  ///< those without and with a cross-entropy
  cuda::Kernel scalar = nullptr;
  cuda::Kernel values = nullptr;
  cuda::Kernel rows = nullptr;
  std::string error;

  cuda::Kernel update_of(bool cross_entropy, Format logits_format, RowsBy rows_by) const {
    return update[cross_entropy ? 1 : 0][static_cast<size_t>(logits_format - kFloat64)]
                 [static_cast<size_t>(rows_by)];
  }
};

/// The devices that have accumulators, and their kernels. Those are compiled elsewhere and loaded
/// by a thread of their own: loading takes milliseconds, and may wait for the device. Thread-safe.
/// No lock is held during a call of the driver.
class KernelStore {
 public:
  using FindDriver = const cuda::Driver* (*)();

  /// That of the process. Never destroyed: kernels are in use until the end.
  static KernelStore& instance();

  /// With another driver than the process's, for tests. It is asked for at the first use: by then
  /// the program has initialised CUDA.
  explicit KernelStore(FindDriver find_driver) : find_driver_(find_driver) {}
  /// Waits for what is being loaded.
  ~KernelStore() { forget(); }

  /// Null where there is none that kernels can be launched by; then `error()` says why.
  const cuda::Driver* driver();
  std::string error();

  /// Null where its primary context is unavailable; `error` says why.
  std::shared_ptr<MetricDevice> device(int ordinal, std::string& error);

  /// The compute capability of a device, as 90 for 9.0; 0 where it is unavailable, and `error` says
  /// why.
  int compute_capability(int ordinal, std::string& error);

  /// Begins to load compiled kernels into a device's primary context, and returns at once.
  void load(int device, std::string code);
  /// Says that there will be none for a device.
  void fail(int device, std::string reason) {
    const std::lock_guard lock(mutex_);
    kernels_[device] = Kernels{.error = std::move(reason)};
  }

  /// Null until the device's kernels are loaded, or are known not to come.
  const Kernels* kernels_on(int device);

  /// Waits until nothing is being loaded. False when that takes longer.
  bool wait(std::chrono::nanoseconds timeout);

  /// For tests, where the driver forgets what it has loaded. Accumulators of before must not be
  /// updated any more.
  void forget();

 private:
  Kernels loaded(int device, const std::string& code);

  const FindDriver find_driver_;
  std::mutex mutex_;
  std::condition_variable loaded_;
  int loading_ = 0;  ///< threads
  const cuda::Driver* driver_ = nullptr;
  std::string error_;
  std::map<int, std::shared_ptr<MetricDevice>> devices_;
  std::map<int, Kernels> kernels_;
};

}  // namespace pig::metrics
