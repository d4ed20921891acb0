// SPDX-License-Identifier: Apache-2.0
//
// The hooks of calls of torch as Python sees them, and what is known of the waits in such calls.
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/ticks.h"
#include "hooks/call_hook.h"
#include "hooks/tensor_inspector.h"
#include "python/bindings.h"
#include "record/parts.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

PyObject* get_in_watched_call(PyObject*, PyObject*) {
  return PyBool_FromLong(in_watched_call ? 1 : 0);
}

PyObject* set_in_watched_call(PyObject*, PyObject* on) {
  in_watched_call = on == Py_True;
  Py_RETURN_NONE;
}

PyMethodDef watched_call_functions[] = {
    {"in_watched_call", get_in_watched_call, METH_NOARGS, "in_watched_call()\n--\n\n"},
    {"set_in_watched_call", set_in_watched_call, METH_O, "set_in_watched_call(on, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

/// An item of the log holds a text of this length at most.
constexpr size_t kMaxText = 1024;

std::optional<uint32_t> sync_site(const std::string& file, uint32_t line,
                                  const std::string& function, uint32_t kind) {
  // The end of a path says more than its begin.
  const size_t cut = file.size() > kMaxText ? file.size() - kMaxText : 0;
  return parts().syncs.add_site({line, kind, file.substr(cut), function.substr(0, kMaxText)});
}

void sync_end(uint32_t site, std::optional<uint64_t> begin, uint64_t bytes) {
  const uint64_t now = read_ticks();
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  ThreadState* thread = epoch != 0 ? recording_thread(epoch) : nullptr;
  if (thread == nullptr) return;
  Recorder& recorder = Recorder::instance();
  const auto step = static_cast<uint32_t>(open_step.load(std::memory_order_relaxed));
  const int64_t begin_ns = recorder.clock().to_ns(begin.value_or(now));
  parts().syncs.add({begin_ns, begin ? recorder.clock().to_ns(now) - begin_ns : -1, bytes, site,
                     thread->innermost_path(), step, thread->serial()});
}

}  // namespace

void add_hook_functions(py::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), watched_call_functions) != 0)
    throw py::error_already_set();
  module.def(
      "look_at_torch",
      [](const py::type& tensor, const py::type& parameter, py::handle on_host, py::handle on_meta,
         const py::dict& compiler_names, py::handle graph_task_id) {
        set_torch_state(compiler_names.ptr(), graph_task_id.ptr());
        return tensor_inspector.install(tensor.ptr(), parameter.ptr(), on_host.ptr(),
                                        on_meta.ptr());
      },
      py::kw_only(), "tensor"_a, "parameter"_a, "on_host"_a, "on_meta"_a, "compiler_names"_a,
      "graph_task_id"_a);
  module.def(
      "hook_subscripts",
      [](py::handle base, int quick_check, py::handle enter_get, py::handle enter_set,
         py::handle leave) {
        return hook_subscripts(base.ptr(), enter_get.ptr(), enter_set.ptr(), leave.ptr(),
                               static_cast<QuickCheck>(quick_check));
      },
      "base"_a, "quick_check"_a, py::kw_only(), "enter_get"_a, "enter_set"_a, "leave"_a);
  module.def(
      "hook_call",
      [](py::handle function, int quick_check, py::handle enter, py::handle leave, bool from_c) {
        return hook_call(function.ptr(), static_cast<QuickCheck>(quick_check), enter.ptr(),
                         leave.ptr(), from_c ? Called::from_c : Called::anyhow);
      },
      "function"_a, "quick_check"_a, py::kw_only(), "enter"_a, "leave"_a, "from_c"_a = false);
  module.def(
      "unhook",
      [](py::handle leave) {
        unhook_subscripts(leave.ptr());
        unhook_calls(leave.ptr());
      },
      "leave"_a);

  module.def("sync_site", &sync_site, "file"_a, "line"_a, "function"_a, "kind"_a);
  module.def("sync_begin", &read_ticks);
  module.def("sync_end", &sync_end, "site"_a, "begin"_a, "bytes"_a);
  module.def(
      "sync_watch", [](bool on, bool as_if) { parts().syncs.watch(on, as_if); }, "on"_a, "as_if"_a);
  module.def("sync_placed", [] { parts().syncs.place(); });
}

}  // namespace pig
