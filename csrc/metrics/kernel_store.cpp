// SPDX-License-Identifier: Apache-2.0
#include "metrics/kernel_store.h"

#include <utility>

namespace pig::metrics {
namespace {

constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kMinor = 76;

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
Kernels load(const cuda::Driver& driver, const char* code) {
  Kernels kernels;
  cuda::Library library = nullptr;
  const int result =
      driver.LibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result != cuda::kSuccess) {
    kernels.error = "cuLibraryLoadData: " + driver.describe(result);
    return kernels;
  }
  for (size_t format = 0; format < kFormatNames.size(); ++format)
    for (size_t by = 0; by < kRowsByNames.size(); ++by)
      find(driver, library,
           kernel_name(static_cast<Format>(kFloat64 + static_cast<int>(format)),
                       static_cast<RowsBy>(by)),
           kernels.update[format][by], kernels.error);
  find(driver, library, "pig_metric_scalar", kernels.scalar, kernels.error);
  if (!kernels.error.empty()) driver.LibraryUnload(library);
  return kernels;
}

}  // namespace

std::string kernel_name(Format logits_format, RowsBy rows_by) {
  return std::string("pig_metric_update_") +
         kFormatNames[static_cast<size_t>(logits_format - kFloat64)] + "_" +
         kRowsByNames[static_cast<size_t>(rows_by)];
}

KernelStore& KernelStore::instance() {
  static auto* const store = new KernelStore(cuda::driver, kernel_image(), compile_kernels);
  return *store;
}

const cuda::Driver* KernelStore::driver() {
  const std::lock_guard lock(mutex_);
  if (driver_ != nullptr || !error_.empty()) return driver_;
  const cuda::Driver* const driver = find_driver_();
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

const Kernels& KernelStore::kernels_on(int device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const Kernels>& known = of_devices_[device];
  if (known != nullptr) return *known;
  Kernels kernels = load_image(*driver_);
  if (!kernels.error.empty()) {
    Kernels compiled = load_compiled(*driver_, device);
    if (!compiled.error.empty()) compiled.error = kernels.error + "; " + compiled.error;
    kernels = std::move(compiled);
  }
  known = std::make_unique<const Kernels>(std::move(kernels));
  return *known;
}

void KernelStore::forget() {
  const std::lock_guard lock(mutex_);
  driver_ = nullptr;
  error_.clear();
  of_devices_.clear();
}

Kernels KernelStore::load_image(const cuda::Driver& driver) const {
  if (!image_.empty()) return load(driver, image_.data());
  Kernels none;
  none.error = "this build has no compiled kernels: nvcc was not found when it was made";
  return none;
}

Kernels KernelStore::load_compiled(const cuda::Driver& driver, int device) {
  Kernels kernels;
  int major = 0, minor = 0;
  int result = driver.DeviceGetAttribute(&major, kMajor, device);
  if (result == cuda::kSuccess) result = driver.DeviceGetAttribute(&minor, kMinor, device);
  if (result != cuda::kSuccess) {
    kernels.error = "cuDeviceGetAttribute: " + driver.describe(result);
    return kernels;
  }
  const auto [found, is_new] = compiled_.try_emplace({major, minor});
  if (is_new) found->second = compile_(major, minor);
  if (!found->second.error.empty()) {
    kernels.error = found->second.error;
    return kernels;
  }
  kernels = load(driver, found->second.code.c_str());
  if (!kernels.error.empty()) kernels.error = "compiled by NVRTC: " + kernels.error;
  return kernels;
}

}  // namespace pig::metrics
