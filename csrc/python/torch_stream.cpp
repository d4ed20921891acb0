// SPDX-License-Identifier: Apache-2.0
#include "python/torch_stream.h"

#include "base/dlpack.h"
#include "base/loaded_library.h"

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

cuda::TorchFunctions torch_functions(PyObject* capsule) {
  cuda::TorchFunctions functions;
  if (const dlpack::ExchangeApi* api = api_of(capsule)) {
    exchange_api = api;
    functions.current_stream = stream_by_exchange_api;
  } else {
    functions.current_stream = loaded_function<decltype(functions.current_stream)>(
        "libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  }
  functions.current_device = loaded_function<decltype(functions.current_device)>(
      "libtorch_cpu.so", "aoti_torch_get_current_device_index");
  return functions;
}

}  // namespace pig
