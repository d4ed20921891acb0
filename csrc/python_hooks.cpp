// SPDX-License-Identifier: Apache-2.0
#include "python_hooks.h"

namespace pig {

PythonHooks python_hooks;

std::string current_thread_name() {
  std::string name;
  if (python_hooks.thread_name == nullptr) return name;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (PyObject* text = PyObject_CallNoArgs(python_hooks.thread_name)) {
    if (const char* utf8 = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr) name = utf8;
    Py_DECREF(text);
  }
  PyErr_Restore(type, value, traceback);  // drops an error of ours: a name is not worth one
  constexpr size_t kLongest = 256;
  if (name.size() > kLongest) name.clear();
  return name;
}

void schedule_history_stopped() {
  Py_AddPendingCall(
      [](void*) {
        // With warnings as errors the call raises: into nobody's training loop.
        PyObject* result = python_hooks.history_stopped != nullptr
                               ? PyObject_CallNoArgs(python_hooks.history_stopped)
                               : Py_NewRef(Py_None);
        if (result == nullptr) PyErr_WriteUnraisable(python_hooks.history_stopped);
        Py_XDECREF(result);
        return 0;
      },
      nullptr);
}

}  // namespace pig
