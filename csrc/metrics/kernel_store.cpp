// SPDX-License-Identifier: Apache-2.0
#include "metrics/kernel_store.h"

#include <system_error>
#include <thread>
#include <utility>

#include "base/threads.h"
#include "cuda/driver_scopes.h"

namespace pig::metrics {
namespace {

// CU_DEVICE_ATTRIBUTE_...
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

constexpr std::array<const char*, kRealFormats> kFormatNames = {"float64", "float32", "float16",
                                                                "bfloat16"};
constexpr std::array<const char*, kRowsByCount> kRowsByNames = {"thread", "warp", "block"};

/// Finds a kernel and has it loaded into the current context: drivers put that off to the first
/// launch, which would then be slow, or inside a capture, and be the one to fail.
void find(const cuda::Driver& driver, cuda::Library library, const std::string& name,
          cuda::Kernel& kernel, std::string& error) {
  if (!error.empty()) return;
  int result = driver.LibraryGetKernel(&kernel, library, name.c_str());
  if (result != cuda::kSuccess) {
    error = "cuLibraryGetKernel(" + name + "): " + driver.describe(result);
    return;
  }
  cuda::Function function = nullptr;
  result = driver.KernelGetFunction(&function, kernel);
  if (result != cuda::kSuccess)
    error = "cuKernelGetFunction(" + name + "): " + driver.describe(result);
}

/// Loads code that stays loaded, unless something is wrong with it.
Kernels load_into_context(const cuda::Driver& driver, const char* code) {
  cuda::Library library = nullptr;
  if (const int result =
          driver.LibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0))
    return {.error = "cuLibraryLoadData: " + driver.describe(result)};
  Kernels kernels;
  for (const bool cross_entropy : {false, true})
    for (size_t format = 0; format < kFormatNames.size(); ++format)
      for (size_t by = 0; by < kRowsByNames.size(); ++by)
        find(driver, library,
             kernel_name(cross_entropy, static_cast<Format>(kFloat64 + static_cast<int>(format)),
                         static_cast<RowsBy>(by)),
             kernels.update[cross_entropy][format][by], kernels.error);
  find(driver, library, "pig_metric_scalar", kernels.scalar, kernels.error);
  find(driver, library, "pig_metric_values", kernels.values, kernels.error);
  find(driver, library, "pig_metric_rows", kernels.rows, kernels.error);
  if (!kernels.error.empty()) driver.LibraryUnload(library);
  return kernels;
}

}  // namespace

std::string kernel_name(bool cross_entropy, Format logits_format, RowsBy rows_by) {
  return std::string(cross_entropy ? "pig_metric_cross_entropy_" : "pig_metric_update_") +
         kFormatNames[static_cast<size_t>(logits_format - kFloat64)] + "_" +
         kRowsByNames[static_cast<size_t>(rows_by)];
}

KernelStore& KernelStore::instance() {
  static auto* const store = new KernelStore(cuda::driver);
  return *store;
}

const cuda::Driver* KernelStore::driver() {
  {
    const std::lock_guard lock(mutex_);
    if (driver_ != nullptr || !error_.empty()) return driver_;
  }
  const cuda::Driver* const driver = find_driver_();
  const std::lock_guard lock(mutex_);
  if (driver == nullptr) {
    error_ = cuda::driver_error();
    return nullptr;
  }
#define PIG_IS_MISSING(name, parameters) || driver->name == nullptr
  if (false PIG_CUDA_KERNEL_FUNCTIONS(PIG_IS_MISSING)) {
    error_ = "the CUDA driver lacks functions that launching kernels needs";
    return nullptr;
  }
#undef PIG_IS_MISSING
  return driver_ = driver;
}

std::string KernelStore::error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::shared_ptr<MetricDevice> KernelStore::device(int ordinal, std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = devices_.find(ordinal); found != devices_.end()) return found->second;
  }
  const cuda::Driver* const table = driver();
  if (table == nullptr) {
    error = this->error();
    return nullptr;
  }
  cuda::Context context = nullptr;
  if (const int result = table->DevicePrimaryCtxRetain(&context, ordinal)) {
    error = "cuDevicePrimaryCtxRetain: " + table->describe(result);
    return nullptr;
  }
  int processors = 0;
  if (const int result = table->DeviceGetAttribute(&processors, kMultiprocessorCount, ordinal)) {
    error = "cuDeviceGetAttribute: " + table->describe(result);
    table->DevicePrimaryCtxRelease(ordinal);
    return nullptr;
  }
  auto made = std::make_shared<MetricDevice>(*table, context, processors);
  std::unique_lock lock(mutex_);
  const auto [entry, is_first] = devices_.try_emplace(ordinal, std::move(made));
  std::shared_ptr<MetricDevice> device = entry->second;
  lock.unlock();
  if (!is_first) table->DevicePrimaryCtxRelease(ordinal);  // another thread was faster
  return device;
}

int KernelStore::compute_capability(int ordinal, std::string& error) {
  const cuda::Driver* const table = driver();
  if (table == nullptr) {
    error = this->error();
    return 0;
  }
  int major = 0;
  int minor = 0;
  int result = table->DeviceGetAttribute(&major, kComputeCapabilityMajor, ordinal);
  if (result == cuda::kSuccess)
    result = table->DeviceGetAttribute(&minor, kComputeCapabilityMinor, ordinal);
  if (result == cuda::kSuccess) return 10 * major + minor;
  error = "cuDeviceGetAttribute: " + table->describe(result);
  return 0;
}

void KernelStore::load(int device, std::string code) {
  const std::lock_guard lock(mutex_);  // the thread publishes what it has loaded after this
  const SignalsBlocked blocked;
  try {
    std::thread([this, device, code = std::move(code)] {
      Kernels kernels = loaded(device, code);
      const std::lock_guard publishing(mutex_);
      kernels_[device] = std::move(kernels);
      --loading_;
      // Under the lock: where this is the last one, whoever waits may destroy the store.
      loaded_.notify_all();
    }).detach();
    ++loading_;
  } catch (const std::system_error& error) {
    kernels_[device].error = std::string("starting the thread that loads kernels: ") + error.what();
  }
}

const Kernels* KernelStore::kernels_on(int device) {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(device);
  return found != kernels_.end() ? &found->second : nullptr;
}

bool KernelStore::wait(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return loaded_.wait_for(lock, timeout, [this] { return loading_ == 0; });
}

void KernelStore::forget() {
  std::unique_lock lock(mutex_);
  loaded_.wait(lock, [this] { return loading_ == 0; });
  driver_ = nullptr;
  error_.clear();
  devices_.clear();
  kernels_.clear();
}

Kernels KernelStore::loaded(int ordinal, const std::string& code) {
  Kernels kernels;
  const std::shared_ptr<MetricDevice> device = this->device(ordinal, kernels.error);
  if (device == nullptr) return kernels;
  const cuda::Driver& driver = *this->driver();
  const cuda::ContextScope scope(driver, device->context());
  if (scope.error())
    kernels.error = std::string(scope.error().call) + ": " + driver.describe(scope.error().result);
  else
    kernels = load_into_context(driver, code.data());
  return kernels;
}

}  // namespace pig::metrics
