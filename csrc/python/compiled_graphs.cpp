// SPDX-License-Identifier: Apache-2.0
//
// Calls of the graphs that torch.compile has made, and the marks inside them.
//
// A call is a phase. A mark says of which phases the kernels are that follow, as names under the
// call: it ends what the mark before it has begun, but for the names that both have in common, and
// begins the rest. The end of the call ends all of it, also where the graph has raised. Marks stand
// in code that torch may have kept for long: outside of an observed call they do nothing.
#include <memory>
#include <vector>

#include "python/bindings.h"
#include "python/phase_registry.h"
#include "python/phase_use.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

struct Opened {
  const Phase* phase;
  uint64_t token;
  size_t around;  ///< of a graph: the number of the one that calls it
};

/// What a thread has opened: graphs, which may call others, each with its label above it.
struct OpenGraphs {
  std::vector<Opened> opened;
  size_t innermost = 0;  ///< the number of the innermost graph, above which its label is; 0: none
};

/// A pointer, so that nothing is done where a thread is ended in the middle of a call.
thread_local OpenGraphs* open_graphs = nullptr;

using Label = std::vector<const Phase*>;

void open_graph(OpenGraphs& graphs, const Phase& phase) {
  graphs.opened.push_back({&phase, 0, graphs.innermost});
  nvtx_push(phase.nvtx);
  graphs.opened.back().token = begin_token(phase);
}

void close_above(OpenGraphs& graphs, size_t keep) {
  while (graphs.opened.size() > keep) {
    const Opened last = graphs.opened.back();
    graphs.opened.pop_back();
    nvtx_pop(last.phase->nvtx);
    end_token(last.token, Closing::kEnd);
  }
}

/// Returns the number of the graph, for its end; 0 where there is no memory.
size_t begin_graph(py::handle phase) {
  const Phase* const of = phase_argument(phase.ptr());
  if (of == nullptr) throw py::error_already_set();
  return with_memory(size_t{0}, [of] {
    if (open_graphs == nullptr) open_graphs = new OpenGraphs;
    open_graph(*open_graphs, *of);
    return open_graphs->innermost = open_graphs->opened.size();
  });
}

void end_graph(size_t graph) {
  if (graph == 0 || open_graphs == nullptr || graph > open_graphs->opened.size()) return;
  open_graphs->innermost = open_graphs->opened[graph - 1].around;
  close_above(*open_graphs, graph - 1);
}

/// `self` is a capsule with the label.
PyObject* mark_is_reached(PyObject* self, PyObject*) {
  OpenGraphs* const graphs = open_graphs;
  if (graphs == nullptr || graphs->innermost == 0) Py_RETURN_NONE;
  const Label& label = *static_cast<const Label*>(PyCapsule_GetPointer(self, nullptr));
  const size_t from = graphs->innermost;
  size_t shared = 0;
  while (shared < label.size() && from + shared < graphs->opened.size() &&
         graphs->opened[from + shared].phase == label[shared])
    ++shared;
  close_above(*graphs, from + shared);
  with_memory(false, [&] {
    for (size_t i = shared; i < label.size(); ++i) open_graph(*graphs, *label[i]);
    return true;
  });
  Py_RETURN_NONE;
}

PyMethodDef mark_definition = {"graph_mark", mark_is_reached, METH_NOARGS, nullptr};

/// The function that a mark calls.
py::object graph_mark(const py::args& names) {
  auto label = std::make_unique<Label>();
  for (const py::handle name : names) {
    const Phase* const phase = find_phase(name.ptr());
    if (phase == nullptr) throw py::error_already_set();
    label->push_back(phase);
  }
  const py::capsule self(label.release(), [](void* it) { delete static_cast<Label*>(it); });
  const auto mark =
      py::reinterpret_steal<py::object>(PyCFunction_New(&mark_definition, self.ptr()));
  if (!mark) throw py::error_already_set();
  return mark;
}

}  // namespace

void add_compiled_graph_functions(py::module_& module) {
  module.def("begin_graph", &begin_graph, "phase"_a);
  module.def("end_graph", &end_graph, "graph"_a);
  module.def("graph_mark", &graph_mark);
}

}  // namespace pig
