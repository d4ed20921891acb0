// SPDX-License-Identifier: Apache-2.0
//
// A driver that counts what it is asked for and hands it on: to libcuda.so.1, or to the library
// that FORWARD_TO names. PyTorch calls the driver by itself, so what is counted is ours. The first
// calls of the function that FORWARD_FAILS names fail, FORWARD_FAILURES of them.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "cuda/driver.h"

#define FORWARD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using pig::cuda::Driver;

#define FORWARD_FUNCTIONS(F)   \
  PIG_CUDA_TIMING_FUNCTIONS(F) \
  PIG_CUDA_KERNEL_FUNCTIONS(F)

#define FORWARD_INDEX(name, parameters) k##name,
enum Index : size_t { FORWARD_FUNCTIONS(FORWARD_INDEX) kCount };
#undef FORWARD_INDEX

constexpr int kNoBinary = 209;

Driver real;
std::array<std::atomic<uint64_t>, kCount> counts;
size_t failing = kCount;
std::atomic<int> failures{0};

template <auto kMember, size_t kIndex>
struct Forward;

template <typename... Parameters, int (*Driver::*kMember)(Parameters...), size_t kIndex>
struct Forward<kMember, kIndex> {
  static int call(Parameters... parameters) {
    ++counts[kIndex];
    if (kIndex == failing && failures.fetch_sub(1) > 0) return kNoBinary;
    return (real.*kMember)(parameters...);
  }
};

using GetProcAddress = int (*)(const char*, void**, int, uint64_t, int*);

GetProcAddress open_real() {
  const char* path = std::getenv("FORWARD_TO");
  void* const library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
}

}  // namespace

FORWARD_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version,
                                       uint64_t flags, int* status) {
  static const GetProcAddress find = open_real();
  constexpr int kNotFound = 500;
  if (find == nullptr) return kNotFound;
  const char* const failing_name = std::getenv("FORWARD_FAILS");
  const int result = find(name, function, version, flags, status);
  if (result != pig::cuda::kSuccess || *function == nullptr) return result;
  if (version > 12000) return result;  // a later variant, which is not counted
#define FORWARD_WRAP(known, parameters)                                            \
  if (std::strcmp(name, "cu" #known) == 0) {                                       \
    real.known = reinterpret_cast<decltype(real.known)>(*function);                \
    *function = reinterpret_cast<void*>(&Forward<&Driver::known, k##known>::call); \
    if (failing_name != nullptr && std::strcmp(name, failing_name) == 0) {         \
      failing = k##known;                                                          \
      failures = std::atoi(std::getenv("FORWARD_FAILURES"));                       \
    }                                                                              \
  }
  FORWARD_FUNCTIONS(FORWARD_WRAP)
#undef FORWARD_WRAP
  return result;
}

/// How often the i-th function of the table was called, and its name; null behind the last.
FORWARD_EXPORT const char* forward_name(uint64_t i) {
#define FORWARD_NAME(name, parameters) "cu" #name,
  static constexpr const char* kNames[] = {FORWARD_FUNCTIONS(FORWARD_NAME) nullptr};
#undef FORWARD_NAME
  return i < kCount ? kNames[i] : nullptr;
}
FORWARD_EXPORT uint64_t forward_count(uint64_t i) { return counts[i]; }
