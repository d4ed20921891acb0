// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstdint>

namespace pig {

/// Sees what it can of a tensor without a call that Python or a mode would see.
///
/// PyTorch keeps its C++ tensor inside the Python object, at an offset that is found and verified
/// when the hooks are installed. From there a function of PyTorch's stable C interface tells the
/// type of the device. Where either is missing nothing is known that way, and Python is asked.
struct TensorInspector {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyTypeObject* dtype = nullptr;
  PyObject* host_device = nullptr;
  int32_t (*device_type)(void* tensor, int32_t* type) = nullptr;
  int32_t host = 0;
  Py_ssize_t offset = 0;
  int32_t (*dim)(void* tensor, int64_t* dim) = nullptr;
  int32_t (*size)(void* tensor, int64_t dim, int64_t* size) = nullptr;
  int32_t (*is_contiguous)(void* tensor, bool* contiguous) = nullptr;
  int32_t (*element_type)(void* tensor, int32_t* type) = nullptr;
  int32_t (*data)(void* tensor, void** address) = nullptr;
  int32_t int64_type = -1, bool_type = -1;

  /// Takes two classes, and tensors of these devices. False, with no error set, where this is
  /// unavailable: then only the classes are known.
  bool install(PyObject* tensor_type, PyObject* parameter_type, PyObject* on_host,
               PyObject* on_meta);

  /// Whether an object is of exactly these two classes.
  bool is_tensor(PyObject* object) const {
    return Py_TYPE(object) == tensor || Py_TYPE(object) == parameter;
  }

  /// Whether it is, and lies on the host. False says nothing.
  bool is_on_host(PyObject* object) const {
    if (device_type == nullptr || !is_tensor(object)) return false;
    int32_t type = host + 1;
    return device_type(reinterpret_cast<char*>(object) + offset, &type) == 0 && type == host;
  }

  /// Whether it is, with two dimensions, and how many elements it has. False says nothing.
  bool is_matrix(PyObject* object, int64_t& elements) const {
    if (size == nullptr || !is_tensor(object)) return false;
    void* const address = reinterpret_cast<char*>(object) + offset;
    int64_t dimensions = 0, columns = 0;
    if (dim(address, &dimensions) != 0 || dimensions != 2) return false;
    if (size(address, 0, &elements) != 0 || size(address, 1, &columns) != 0) return false;
    elements *= columns;
    return true;
  }

  /// Rows of 64-bit integers on the host.
  struct PaddedRows {
    const int64_t* values = nullptr;
    int64_t count = 0;
    int64_t length = 0;
  };
  /// Whether an object is a tensor of such rows, without gaps. False says nothing.
  bool has_integer_rows(PyObject* object, PaddedRows& rows) const;
  /// Whether rows look padded by zeros at their ends, or not at all: what is left of them is hardly
  /// zero. `full`: the elements that are left. Reads them.
  static bool are_padded(const PaddedRows& rows, int64_t& full);

  /// Whether it is, on the host and without gaps, of 64-bit integers or bools; and how many of its
  /// elements are not zero. Reads them: some microseconds for ten thousand. False says nothing.
  bool is_mask(PyObject* object, int64_t& elements, int64_t& set) const;

  /// Whether it is, with a first dimension, and how large that is. False says nothing.
  bool has_rows(PyObject* object, int64_t& rows) const {
    if (size == nullptr || !is_tensor(object)) return false;
    void* const address = reinterpret_cast<char*>(object) + offset;
    int64_t dimensions = 0;
    return dim(address, &dimensions) == 0 && dimensions > 0 && size(address, 0, &rows) == 0;
  }
};

extern TensorInspector tensor_inspector;

/// How to ask what torch does on the calling thread: by the dictionary of `torch.compiler`, and a
/// builtin function, which returns -1 outside of a backward pass's own threads. Both are kept for
/// good. Calling it again does nothing.
void set_torch_state(PyObject* compiler_names, PyObject* graph_task_id);

/// Whether torch.compile, or export, follows the program.
bool is_compiling();
/// Whether the calling thread is in a backward pass, which may have threads of autograd's own.
bool is_in_graph_task();

}  // namespace pig
