// SPDX-License-Identifier: Apache-2.0
#include "python/torch_stream.h"

#include <dlfcn.h>

#include "base/dlpack.h"

namespace pig {
namespace {

const dlpack::ExchangeApi* exchange_api = nullptr;

int stream_by_exchange_api(int32_t device, void** stream) {
  if (PIG_LIKELY(exchange_api->current_work_stream(dlpack::kCuda, device, stream) == 0)) return 0;
  PyErr_Clear();
  return -1;
}

const dlpack::ExchangeApi* api_of(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kCapsuleName) == 0) return nullptr;
  const auto* header = static_cast<const dlpack::ExchangeApiHeader*>(
      PyCapsule_GetPointer(capsule, dlpack::kCapsuleName));
  while (header != nullptr && header->version.major != dlpack::kMajorVersion)
    header = header->previous;
  return reinterpret_cast<const dlpack::ExchangeApi*>(header);
}

}  // namespace

cuda::StreamFunction torch_stream_function(PyObject* capsule) {
  if (const dlpack::ExchangeApi* api = api_of(capsule)) {
    exchange_api = api;
    return stream_by_exchange_api;
  }
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<cuda::StreamFunction>(
      dlsym(library, "aoti_torch_get_current_cuda_stream"));
}

}  // namespace pig
