// SPDX-License-Identifier: Apache-2.0
//
// The part of DLPack's C exchange API that crosses between PyTorch and this module: how a tensor
// looks, and which stream the calling thread enqueues on. Laid out as DLPack 1.x fixes it; no
// header of torch is needed, and one build serves every torch that has the API (2.10 and newer).
//
// torch.Tensor.__dlpack_c_exchange_api__ is a capsule, named as below, with a pointer to an
// ExchangeApi that lives as long as the process. Its functions set a Python error when they fail.
#pragma once

#include <cstdint>

namespace pig::dlpack {

constexpr const char* kCapsuleName = "dlpack_exchange_api";
constexpr uint32_t kMajorVersion = 1;

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct Device {
  DeviceType type;
  int32_t id;
};

enum DataTypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

/// A borrowed view: shape and strides (in elements) belong to the tensor it was made from.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct ExchangeApiHeader {
  struct {
    uint32_t major;
    uint32_t minor;
  } version;
  ExchangeApiHeader* previous;  ///< of an older major version, or nullptr
};

struct ExchangeApi {
  ExchangeApiHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  /// Fills `out` without taking a reference; the object is a PyObject*. Returns 0, or -1 with a
  /// Python error set. May be null.
  int (*tensor_from_py_object)(void* object, Tensor* out);
  /// The calling thread's current stream on a device. Returns 0, or -1 with a Python error set.
  int (*current_work_stream)(DeviceType type, int32_t device, void** stream);
};

}  // namespace pig::dlpack
