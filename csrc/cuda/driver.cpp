// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <string_view>
#include <type_traits>

namespace pig::cuda {
namespace {

// The version of the ABI that the declarations above follow.
constexpr int kAbiVersion = 12000;

const char* library_path() {
  const char* path = std::getenv("PYINSTRUMENT_GPU_LIBCUDA");
  return path != nullptr && *path != '\0' ? path : "libcuda.so.1";
}

struct Loaded {
  Driver table;
  std::string error;
  Loaded();
};

Loaded::Loaded() {
  const char* path = library_path();
  // Never closed: threads may be inside it until the process ends.
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    error = dlerror();
    return;
  }
  using GetProcAddress =
      int (*)(const char* name, void** function, int version, uint64_t flags, int* status);
  const auto get_address = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (get_address == nullptr) {
    error = std::string(path) +
            " has no cuGetProcAddress_v2: a driver for CUDA 12.0 or newer is needed";
    return;
  }
  const auto find = [&](const char* name, auto& function, int version = kAbiVersion) {
    void* address = nullptr;
    if (get_address(name, &address, version, 0, nullptr) != kSuccess) address = nullptr;
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
    return address != nullptr;
  };
#define PIG_REQUIRE(name, parameters)                 \
  if (!find("cu" #name, table.name) && error.empty()) \
    error = std::string(path) + " has no cu" #name;
  PIG_CUDA_TIMING_FUNCTIONS(PIG_REQUIRE)
#undef PIG_REQUIRE
  find("cuEventElapsedTime", table.EventElapsedTime_v2, 12080);
#define PIG_FIND(name, parameters) find("cu" #name, table.name);
  PIG_CUDA_KERNEL_FUNCTIONS(PIG_FIND)
  PIG_CUDA_GRAPH_FUNCTIONS(PIG_FIND)
#undef PIG_FIND
}

const Loaded& loaded() {
  static const Loaded* const instance = new Loaded;  // leaked: used until the process ends
  return *instance;
}

}  // namespace

std::string Driver::describe(int result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != kSuccess) name = nullptr;
  if (GetErrorString(result, &text) != kSuccess) text = nullptr;
  std::string description = name != nullptr ? name : "error";
  description += " (" + std::to_string(result) + ")";
  if (text != nullptr) description += std::string(": ") + text;
  return description;
}

bool driver_is_loaded() {
  // Not by dlopen, which would look for it on the disk.
  std::string_view name = library_path();
  name.remove_prefix(name.rfind('/') + 1);
  return dl_iterate_phdr(
             [](dl_phdr_info* info, size_t, void* name) -> int {
               std::string_view file = info->dlpi_name;
               file.remove_prefix(file.rfind('/') + 1);
               return file.starts_with("libcuda.so") ||
                      file == *static_cast<std::string_view*>(name);
             },
             &name) != 0;
}

const Driver* driver() { return loaded().error.empty() ? &loaded().table : nullptr; }

const std::string& driver_error() { return loaded().error; }

}  // namespace pig::cuda
