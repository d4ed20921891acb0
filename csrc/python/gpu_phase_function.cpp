// SPDX-License-Identifier: Apache-2.0
//
// `gpu_phase` has to be a builtin function, because Dynamo substitutes functions, not types, and
// yet has an attribute `scope`. So its type is derived from the builtin function type, statically
// (Python code could not).
#include "python/bindings.h"
#include "python/phase_registry.h"
#include "python/python_type.h"

namespace pig {
namespace {

PyObject* gpu_phase(PyObject*, PyObject* name) {
  return Py_XNewRef(reinterpret_cast<PyObject*>(phase_of(name)));
}

PyObject* gpu_phase_vectorcall(PyObject*, PyObject* const* arguments, size_t nargsf,
                               PyObject* keywords) {
  if (PIG_UNLIKELY(PyVectorcall_NARGS(nargsf) != 1 ||
                   (keywords != nullptr && PyTuple_GET_SIZE(keywords) != 0))) {
    PyErr_SetString(
        PyExc_TypeError,
        "gpu_phase() takes one argument, the name, by position: gpu_phase(\"forward\")");
    return nullptr;
  }
  return gpu_phase(nullptr, arguments[0]);
}

PyMethodDef gpu_phase_definition = {
    "gpu_phase", gpu_phase, METH_O,
    "gpu_phase(name, /)\n--\n\n"
    "Return the handle of a phase: a context manager, a decorator, and begin() and end().\n\n"
    "    with gpu_phase(\"forward\"):\n"
    "        loss = loss_fn(model(x), y)\n\n"
    "There is one handle per name. While a recording is active, each use records one span of the\n"
    "calling thread. Each use is also an NVTX range, whether or not anything is recorded.\n\n"
    "Leaving a `with` block closes the phase that it has opened. Phases nest within a task: those "
    "of\n"
    "asyncio's tasks and of greenlets, which take turns on a thread, are not inside each other, "
    "and\n"
    "their times include those in which they are suspended. Inside torch.compile a phase is timed\n"
    "with `record(compiled_phases=True)`, and else records nothing.\n\n"
    "Args:\n"
    "    name: 1 to 256 characters. Of a longer name the first 256 count, and\n"
    "        `Run.dropped[\"long_names\"]` says how many phases have such names. A process can "
    "have\n"
    "        at most 65,535 names.\n\n"
    "Without memory for a new name this returns a handle that such names share, and\n"
    "`Run.dropped[\"no_memory\"]` counts it.\n\n"
    "Raises:\n"
    "    TypeError: `name` is not a str.\n"
    "    PhaseNameError: `name` is empty, or there are too many names and nothing is being\n"
    "        recorded (while recording, further names share one and are counted in "
    "`Run.dropped`).\n\n"
    "Cost: about 50 ns per use, and never a wait for the GPU. Usually it takes no lock and "
    "allocates\n"
    "nothing; the first use on a thread or of a path does, and so does a full ring."};

// One object forever, not one per access: Dynamo knows functions by their address.
PyObject* scope_function = nullptr;

PyObject* gpu_phase_get_scope(PyObject*, void*) { return Py_NewRef(scope_function); }

PyGetSetDef gpu_phase_getset[] = {
    {"scope", gpu_phase_get_scope, nullptr,
     "Like gpu_phase, but closes exactly the span it opened.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

/// What it does not say it inherits.
PyTypeObject gpu_phase_type =
    static_type<PyCFunctionObject>("pyinstrument_gpu.native._C.gpu_phase_function",
                                   [](PyTypeObject& type) { type.tp_getset = gpu_phase_getset; });

}  // namespace

PyObject* new_gpu_phase(PyObject* module) {
  gpu_phase_type.tp_base = &PyCFunction_Type;
  if (!ready_type(gpu_phase_type)) return nullptr;
  // A type without a text of its own has `__doc__` None, which would hide the function's.
  if (PyDict_DelItemString(gpu_phase_type.tp_dict, "__doc__") != 0) return nullptr;
  PyType_Modified(&gpu_phase_type);
  PyObject* module_name = PyModule_GetNameObject(module);
  if (module_name == nullptr) return nullptr;
  scope_function = PyCFunction_NewEx(&scope_definition, nullptr, module_name);
  PyObject* function = PyCFunction_NewEx(&gpu_phase_definition, nullptr, module_name);
  Py_DECREF(module_name);
  if (function == nullptr || scope_function == nullptr) return nullptr;
  Py_SET_TYPE(function, &gpu_phase_type);
  reinterpret_cast<PyCFunctionObject*>(function)->vectorcall = gpu_phase_vectorcall;
  return function;
}

}  // namespace pig
