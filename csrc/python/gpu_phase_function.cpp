// SPDX-License-Identifier: Apache-2.0
//
// `gpu_phase` has to be a builtin function, because Dynamo substitutes functions, not types, and
// yet has an attribute `scope`. So its type is derived from the builtin function type, statically
// (Python code could not).
#include "python/gpu_phase_function.h"

#include "python/phase_registry.h"
#include "python/python_type.h"
#include "python/scope_type.h"

namespace pig {
namespace {

PyObject* gpu_phase(PyObject*, PyObject* name) {
  return Py_XNewRef(reinterpret_cast<PyObject*>(phase_of(name)));
}

PyObject* gpu_phase_vectorcall(PyObject*, PyObject* const* arguments, size_t nargsf,
                               PyObject* keywords) {
  if (!check_arguments(nargsf, keywords, 1, "gpu_phase")) return nullptr;
  return gpu_phase(nullptr, arguments[0]);
}

PyMethodDef gpu_phase_definition = {
    "gpu_phase", gpu_phase, METH_O,
    "gpu_phase(name, /)\n--\n\n"
    "The handle of the phase called `name`: a context manager, a decorator, begin() and end().\n\n"
    "There is one handle per name. While a recording is active each use records one span of the "
    "calling thread; always,\n"
    "it is an NVTX range. `with` closes the innermost open phase of that name on the thread; where "
    "the same name is open\n"
    "twice in interleaved generators or coroutines, use gpu_phase.scope(name). Inside "
    "torch.compile it is a null context.\n\n"
    "Args:\n"
    "    name: 1 to 256 characters. A process has at most 65,535 names.\n\n"
    "Raises:\n"
    "    TypeError: `name` is not a str.\n"
    "    PhaseNameError: `name` is empty or too long, or there are too many names and nothing is "
    "being recorded\n"
    "        (while recording, further names share one and are counted in `Run.dropped`).\n\n"
    "Cost: about 50 ns per use, and never a wait for the GPU. In the common case it takes no lock "
    "and\n"
    "allocates nothing; the first use on a thread or of a path does, and so does a full ring."};

// One object for ever, not one per access: Dynamo knows functions by their address.
PyObject* scope_function = nullptr;

PyObject* gpu_phase_get_scope(PyObject*, void*) { return Py_NewRef(scope_function); }

PyGetSetDef gpu_phase_getset[] = {
    {"scope", gpu_phase_get_scope, nullptr, "See `_C.Scope`.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject gpu_phase_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.gpu_phase_function";
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_getset = gpu_phase_getset;
  return type;
}();

}  // namespace

PyObject* new_gpu_phase(PyObject* module) {
  gpu_phase_type.tp_base = &PyCFunction_Type;
  gpu_phase_type.tp_basicsize = PyCFunction_Type.tp_basicsize;
  gpu_phase_type.tp_traverse = PyCFunction_Type.tp_traverse;
  gpu_phase_type.tp_clear = PyCFunction_Type.tp_clear;
  if (PyType_Ready(&gpu_phase_type) != 0) return nullptr;
  PyObject* module_name = PyModule_GetNameObject(module);
  if (module_name == nullptr) return nullptr;
  scope_function = new_scope_function(module_name);
  PyObject* function = PyCFunction_NewEx(&gpu_phase_definition, nullptr, module_name);
  Py_DECREF(module_name);
  if (function == nullptr || scope_function == nullptr) return nullptr;
  Py_SET_TYPE(function, &gpu_phase_type);
  reinterpret_cast<PyCFunctionObject*>(function)->vectorcall = gpu_phase_vectorcall;
  return function;
}

}  // namespace pig
