// SPDX-License-Identifier: Apache-2.0
#include "hooks/tensor_inspector.h"

#include <algorithm>
#include <cstring>

#include "base/loaded_library.h"

namespace pig {

TensorInspector tensor_inspector;

namespace {

PyObject* compiler_names = nullptr;
PyObject* graph_task_id = nullptr;

/// The address of the C++ tensor that a tensor's object holds, by PyTorch's own word; or nullptr.
void* address_of(PyObject* tensor) {
  PyObject* number = PyObject_GetAttrString(tensor, "_cdata");
  void* address = number != nullptr ? PyLong_AsVoidPtr(number) : nullptr;
  Py_XDECREF(number);
  PyErr_Clear();
  return address;
}

bool holds(PyObject* tensor, Py_ssize_t offset, void* address) {
  return std::memcmp(reinterpret_cast<char*>(tensor) + offset, &address, sizeof address) == 0;
}

/// Where the objects hold it: the first word of them behind Python's own in which each has its own
/// address. 0 when there is none.
Py_ssize_t find_offset(PyObject* one, PyObject* other) {
  void* const address = address_of(one);
  void* const other_address = address_of(other);
  if (address == nullptr || other_address == nullptr || address == other_address) return 0;
  constexpr auto word = static_cast<Py_ssize_t>(sizeof(void*));
  const Py_ssize_t end = Py_TYPE(one)->tp_basicsize;
  for (auto offset = static_cast<Py_ssize_t>(sizeof(PyObject)); offset + word <= end;
       offset += word)
    if (holds(one, offset, address) && holds(other, offset, other_address)) return offset;
  return 0;
}

template <typename Function>
Function in_torch(const char* name) {
  return loaded_function<Function>("libtorch_cpu.so", name);
}

}  // namespace

bool TensorInspector::install(PyObject* tensor_type, PyObject* parameter_type, PyObject* on_host,
                              PyObject* on_meta) {
  if (device_type != nullptr) return true;
  if (tensor == nullptr) {  // for good: calls may be under way
    tensor = reinterpret_cast<PyTypeObject*>(Py_NewRef(tensor_type));
    parameter = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter_type));
  }
  if (Py_TYPE(on_host) != tensor || Py_TYPE(on_meta) != tensor) return false;
  const auto ask = in_torch<decltype(device_type)>("aoti_torch_get_device_type");
  const auto host_type = in_torch<int32_t (*)()>("aoti_torch_device_type_cpu");
  const Py_ssize_t at = find_offset(on_host, on_meta);
  if (ask == nullptr || host_type == nullptr || at == 0) return false;
  int32_t type = host_type() + 1, other = host_type();
  if (ask(reinterpret_cast<char*>(on_host) + at, &type) != 0 || type != host_type() ||
      ask(reinterpret_cast<char*>(on_meta) + at, &other) != 0 || other == host_type())
    return false;
  PyObject* device = PyObject_GetAttrString(on_host, "device");
  PyObject* dtype_of_host = PyObject_GetAttrString(on_host, "dtype");
  PyErr_Clear();
  if (device == nullptr || dtype_of_host == nullptr) {
    Py_XDECREF(device);
    Py_XDECREF(dtype_of_host);
    return false;
  }
  host_device = device;
  dtype = Py_TYPE(dtype_of_host);  // a static type; the object is kept all the same
  host = host_type();
  offset = at;
  dim = in_torch<decltype(dim)>("aoti_torch_get_dim");
  size = in_torch<decltype(size)>("aoti_torch_get_size");
  if (dim == nullptr) size = nullptr;
  const auto int64 = in_torch<int32_t (*)()>("aoti_torch_dtype_int64");
  const auto boolean = in_torch<int32_t (*)()>("aoti_torch_dtype_bool");
  is_contiguous = in_torch<decltype(is_contiguous)>("aoti_torch_is_contiguous");
  element_type = in_torch<decltype(element_type)>("aoti_torch_get_dtype");
  if (int64 != nullptr && boolean != nullptr && is_contiguous != nullptr &&
      element_type != nullptr) {
    int64_type = int64();
    bool_type = boolean();
    data = in_torch<decltype(data)>("aoti_torch_get_data_ptr");
  }
  device_type = ask;
  return true;
}

bool TensorInspector::is_mask(PyObject* object, int64_t& elements, int64_t& set) const {
  if (data == nullptr || !is_on_host(object) || !is_matrix(object, elements)) return false;
  void* const tensor_address = reinterpret_cast<char*>(object) + offset;
  bool has_no_gaps = false;
  int32_t type = -1;
  void* values = nullptr;
  if (is_contiguous(tensor_address, &has_no_gaps) != 0 || !has_no_gaps ||
      element_type(tensor_address, &type) != 0 || (type != int64_type && type != bool_type) ||
      data(tensor_address, &values) != 0 || (values == nullptr && elements != 0))
    return false;
  const auto zeros = [&](const auto* first) { return std::count(first, first + elements, 0); };
  set = elements - (type == bool_type ? zeros(static_cast<const char*>(values))
                                      : zeros(static_cast<const int64_t*>(values)));
  return true;
}

bool TensorInspector::has_integer_rows(PyObject* object, PaddedRows& rows) const {
  if (data == nullptr || element_type == nullptr || !is_on_host(object)) return false;
  void* const address = reinterpret_cast<char*>(object) + offset;
  int32_t type = -1;
  // The type first: the size of a nested tensor is an error, which is an exception inside of torch.
  if (element_type(address, &type) != 0 || type != int64_type) return false;
  int64_t dimensions = 0;
  bool has_no_gaps = false;
  if (dim(address, &dimensions) != 0 || dimensions != 2) return false;
  if (is_contiguous(address, &has_no_gaps) != 0 || !has_no_gaps) return false;
  void* values = nullptr;
  if (size(address, 0, &rows.count) != 0 || size(address, 1, &rows.length) != 0 ||
      data(address, &values) != 0)
    return false;
  rows.values = static_cast<const int64_t*>(values);
  return values != nullptr;
}

bool TensorInspector::are_padded(const PaddedRows& rows, int64_t& full) {
  int64_t zeros = 0;
  full = 0;
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t* const begin = rows.values + row * rows.length;
    const int64_t* end = begin + rows.length;
    while (end != begin && end[-1] == 0) --end;
    full += end - begin;
    zeros += std::count(begin, end, 0);
  }
  constexpr int64_t kHardly = 10;
  return zeros * kHardly <= full;
}

void set_torch_state(PyObject* names, PyObject* id) {
  if (compiler_names != nullptr) return;
  compiler_names = Py_NewRef(names);
  graph_task_id = Py_NewRef(id);
}

bool is_compiling() {
  static PyObject* const name = PyUnicode_InternFromString("_is_compiling_flag");
  PyObject* value = PyDict_GetItemWithError(compiler_names, name);
  if (value == nullptr) PyErr_Clear();
  return value == Py_True;
}

bool is_in_graph_task() {
  PyObject* id = PyObject_CallNoArgs(graph_task_id);
  const long number = id != nullptr ? PyLong_AsLong(id) : -1;
  Py_XDECREF(id);
  PyErr_Clear();
  return number != -1;
}

}  // namespace pig
