// SPDX-License-Identifier: Apache-2.0
//
// What may make steps slow, as Python tells it, and what its garbage collector takes. That calls
// `on_collection`, one of `gc.callbacks`, as each collection begins and ends, with the GIL, and
// never while another one goes on.
#include <Python.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "base/ticks.h"
#include "hot/active_recording.h"
#include "python/bindings.h"
#include "python/python_type.h"
#include "record/parts.h"
#include "record/recorder.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

/// One that takes no longer is a part of the sum of its step.
constexpr int64_t kShortNs = 100'000;

uint64_t begin_ticks = 0;
uint32_t begun_in = 0;  ///< the recording

uint32_t generation_of(PyObject* info) {
  static PyObject* const name = PyUnicode_InternFromString("generation");
  PyObject* const found = PyDict_Check(info) ? PyDict_GetItemWithError(info, name) : nullptr;
  const long number = found != nullptr && PyLong_Check(found) ? PyLong_AsLong(found) : 0;
  PyErr_Clear();
  return number > 0 ? static_cast<uint32_t>(number) : 0;
}

uint32_t this_thread_id() {
  static thread_local const auto id = static_cast<uint32_t>(gettid());
  return id;
}

PyObject* on_collection(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const uint64_t now = read_ticks();
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  const char* const phase =
      count == 2 && PyUnicode_Check(args[0]) ? PyUnicode_AsUTF8(args[0]) : nullptr;
  if (phase == nullptr) {
    PyErr_Clear();
  } else if (std::strcmp(phase, "start") == 0) {
    begin_ticks = now;
    begun_in = epoch;
  } else if (epoch != 0 && begun_in == epoch) {
    begun_in = 0;
    const Clock& clock = Recorder::instance().clock();
    const int64_t begin_ns = clock.to_ns(begin_ticks), end_ns = clock.to_ns(now);
    CauseLog& causes = parts().causes;
    if (end_ns - begin_ns <= kShortNs)
      causes.add_to_step(CauseKind::kCollection, end_ns - begin_ns);
    else
      causes.add(CauseKind::kCollection, begin_ns, end_ns, this_thread_id(),
                 generation_of(args[1]));
  }
  Py_RETURN_NONE;
}

PyMethodDef collector_functions[] = {{"on_collection", as_method(on_collection), METH_FASTCALL,
                                      "on_collection(phase, info, /)\n--\n\n"},
                                     {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_cause_functions(py::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), collector_functions) != 0) throw py::error_already_set();
  module.def(
      "add_cause",
      [](uint32_t kind, int64_t begin_ns, int64_t end_ns, uint32_t note) {
        parts().causes.add(static_cast<CauseKind>(kind), begin_ns, end_ns, this_thread_id(), note);
      },
      "kind"_a, "begin_ns"_a, "end_ns"_a, "note"_a = 0);
  module.def(
      "add_cause_to_step",
      [](uint32_t kind, int64_t time_ns) {
        parts().causes.add_to_step(static_cast<CauseKind>(kind), time_ns);
      },
      "kind"_a, "time_ns"_a);
}

}  // namespace pig
