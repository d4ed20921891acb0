// SPDX-License-Identifier: Apache-2.0
//
// `gpu_phase` and the handles it returns, written against the C API: a `with gpu_phase("x"):` costs
// one lookup and two calls, none of which may allocate.
//
// The handle. There is one Phase per name, made once and kept for ever. `gpu_phase` finds it
// through a small cache keyed by the address of the name object (a literal in user code is always
// the same object), and through a dict behind it. The cache holds references, so an address in it
// can't come to mean another string.
//
// The methods. Up to Python 3.13 a `with` statement looks `__enter__` and `__exit__` up on the type
// and binds them, which allocates two bound methods each time. Here they are descriptors whose
// `tp_descr_get` hands out two callables that were made with the handle. Found on the type itself,
// as contextlib.ExitStack does, a descriptor answers itself and is called with the handle as the
// first argument.
//
// `gpu_phase` has to be a builtin function, because Dynamo substitutes functions, not types, and
// yet has an attribute `scope`. So its type is derived from the builtin function type, statically
// (Python code could not).
//
// Nothing here raises from an enter or an exit. NVTX ranges are pushed and popped whether or not
// anything is recorded.
#include "phase_type.h"

#include <cstdint>
#include <new>
#include <string>

#include "nvtx_range.h"
#include "phase_table.h"
#include "python_hooks.h"
#include "recorder.h"
#include "recording_thread.h"
#include "thread_state.h"

namespace pig {
namespace {

constexpr Py_ssize_t kLongestName = 256;

struct Phase;

struct PhaseMethod {
  PyObject_HEAD vectorcallfunc vectorcall;
  Phase* phase;
};

struct Phase {
  PyObject_HEAD uint32_t id;
  PhaseMethod* enter;
  PhaseMethod* exit;
  PyObject* name;
  nvtxDomainHandle_t nvtx_domain;
  nvtxEventAttributes_t nvtx;
};

struct Scope {
  PyObject_HEAD Phase* phase;
  uint64_t token;
};

struct PhaseDescriptor {
  PyObject_HEAD bool is_exit;
};

PyTypeObject blank_type() {
  const PyVarObject head[] = {PyVarObject_HEAD_INIT(nullptr, 0)};
  PyTypeObject type{};
  type.ob_base = head[0];
  return type;
}

// --- recording ---

/// Returns the frame's serial, or 0 when the frame could not be opened; its end is then expected
/// all the same.
uint32_t begin_frame(ThreadState& thread, uint32_t phase) noexcept {
  try {
    return thread.begin(phase);
  } catch (const std::bad_alloc&) {
    thread.skip_frame();
    return 0;
  }
}

inline void enter_phase(const Phase& phase) noexcept {
  nvtx_push(phase.nvtx, phase.nvtx_domain);
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0) return;
  if (ThreadState* thread = recording_thread(epoch)) begin_frame(*thread, phase.id);
}

inline void exit_phase(const Phase& phase) noexcept {
  nvtx_pop(phase.nvtx_domain);
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0) return;
  if (ThreadState* thread = recording_thread(epoch)) thread->end(phase.id);
}

// A token names a frame of a thread of a recording: epoch 16 bits, thread 16, frame 32. Never 0.

uint64_t begin_token(const Phase& phase) noexcept {
  nvtx_push(phase.nvtx, phase.nvtx_domain);
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0) return 0;
  ThreadState* thread = recording_thread(epoch);
  if (thread == nullptr) return 0;
  const uint32_t frame = begin_frame(*thread, phase.id);
  if (frame == 0) {
    thread->forgive_depth();
    return 0;
  }
  return static_cast<uint64_t>(epoch & 0xFFFF) << 48 |
         static_cast<uint64_t>(thread->serial()) << 32 | frame;
}

enum class Closing { kEnd, kCancel };

void end_token(const Phase& phase, uint64_t token, Closing closing) noexcept {
  nvtx_pop(phase.nvtx_domain);
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0 || token == 0 || (epoch & 0xFFFF) != token >> 48) return;
  const uint64_t now = read_ticks();
  ThreadState* thread = recording_thread(epoch);
  if (thread == nullptr) return;
  const auto serial = static_cast<uint32_t>(token >> 32 & 0xFFFF);
  const auto frame = static_cast<uint32_t>(token);
  if (thread->serial() != serial) {
    // A generator that was moved to another thread: its frame stands on the stack of the first.
    if (ThreadState* other = Recorder::instance().threads().find(serial)) {
      other->request_end(frame, now);
    } else {
      Recorder::instance().drops().add(Drop::kUnmatchedEnds);
    }
  } else if (closing == Closing::kEnd) {
    thread->end_frame(frame, now);
  } else {
    thread->cancel_frame(frame);
  }
}

// --- the callables of a handle ---

bool check_arguments(size_t nargsf, PyObject* keywords, Py_ssize_t expected, const char* name) {
  const Py_ssize_t got = PyVectorcall_NARGS(nargsf);
  if (PIG_LIKELY(got == expected && (keywords == nullptr || PyTuple_GET_SIZE(keywords) == 0)))
    return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments, got %zd", name, expected,
               got);
  return false;
}

PyObject* call_enter(PyObject* self, PyObject* const*, size_t nargsf, PyObject* keywords) {
  if (!check_arguments(nargsf, keywords, 0, "__enter__")) return nullptr;
  Phase* phase = reinterpret_cast<PhaseMethod*>(self)->phase;
  enter_phase(*phase);
  return Py_NewRef(reinterpret_cast<PyObject*>(phase));
}

PyObject* call_exit(PyObject* self, PyObject* const*, size_t nargsf, PyObject* keywords) {
  if (!check_arguments(nargsf, keywords, 3, "__exit__")) return nullptr;
  exit_phase(*reinterpret_cast<PhaseMethod*>(self)->phase);
  Py_RETURN_NONE;
}

PyTypeObject phase_method_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.PhaseMethod";
  type.tp_basicsize = sizeof(PhaseMethod);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(PhaseMethod, vectorcall);
  type.tp_call = PyVectorcall_Call;
  return type;
}();

PhaseMethod* new_method(Phase* phase, vectorcallfunc function) {
  auto* method = PyObject_New(PhaseMethod, &phase_method_type);
  if (method == nullptr) return nullptr;
  method->vectorcall = function;
  method->phase = phase;  // not counted: both live for ever
  return method;
}

// --- descriptors of __enter__ and __exit__ ---

PyTypeObject* phase_type();

PyObject* descriptor_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr) return Py_NewRef(self);
  auto* phase = reinterpret_cast<Phase*>(instance);
  PhaseMethod* method =
      reinterpret_cast<PhaseDescriptor*>(self)->is_exit ? phase->exit : phase->enter;
  return Py_NewRef(reinterpret_cast<PyObject*>(method));
}

PyObject* descriptor_call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const bool is_exit = reinterpret_cast<PhaseDescriptor*>(self)->is_exit;
  const Py_ssize_t expected = is_exit ? 4 : 1;
  PyObject* instance = PyTuple_GET_SIZE(arguments) > 0 ? PyTuple_GET_ITEM(arguments, 0) : nullptr;
  if (instance == nullptr || Py_TYPE(instance) != phase_type() ||
      PyTuple_GET_SIZE(arguments) != expected ||
      (keywords != nullptr && PyDict_GET_SIZE(keywords) != 0)) {
    PyErr_Format(PyExc_TypeError, "%s() takes a Phase and %zd more positional arguments",
                 is_exit ? "__exit__" : "__enter__", expected - 1);
    return nullptr;
  }
  auto* phase = reinterpret_cast<Phase*>(instance);
  if (is_exit) {
    exit_phase(*phase);
    Py_RETURN_NONE;
  }
  enter_phase(*phase);
  return Py_NewRef(instance);
}

PyTypeObject phase_descriptor_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.PhaseDescriptor";
  type.tp_basicsize = sizeof(PhaseDescriptor);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_descr_get = descriptor_get;
  type.tp_call = descriptor_call;
  return type;
}();

bool add_descriptor(PyObject* dict, const char* name, bool is_exit) {
  auto* descriptor = PyObject_New(PhaseDescriptor, &phase_descriptor_type);
  if (descriptor == nullptr) return false;
  descriptor->is_exit = is_exit;
  const int error = PyDict_SetItemString(dict, name, reinterpret_cast<PyObject*>(descriptor));
  Py_DECREF(descriptor);
  return error == 0;
}

// --- Phase ---

PyObject* phase_begin(PyObject* self, PyObject*) {
  enter_phase(*reinterpret_cast<Phase*>(self));
  Py_RETURN_NONE;
}

PyObject* phase_end(PyObject* self, PyObject*) {
  exit_phase(*reinterpret_cast<Phase*>(self));
  Py_RETURN_NONE;
}

PyObject* phase_name(PyObject* self, void*) {
  return Py_NewRef(reinterpret_cast<Phase*>(self)->name);
}

PyObject* phase_repr(PyObject* self) {
  return PyUnicode_FromFormat("gpu_phase(%R)", reinterpret_cast<Phase*>(self)->name);
}

PyObject* phase_call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  if (PyTuple_GET_SIZE(arguments) != 1 || (keywords != nullptr && PyDict_GET_SIZE(keywords) != 0) ||
      !PyCallable_Check(PyTuple_GET_ITEM(arguments, 0))) {
    PyErr_Format(PyExc_TypeError, "%R decorates one function; to time a block use `with %R:`", self,
                 self);
    return nullptr;
  }
  return PyObject_CallFunctionObjArgs(python_hooks.decorate, self, PyTuple_GET_ITEM(arguments, 0),
                                      nullptr);
}

/// A handle survives pickling and copying (a module that holds one may be sent to a worker) by its
/// name.
PyObject* phase_reduce(PyObject* self, PyObject*);

PyMethodDef phase_methods[] = {{"begin", phase_begin, METH_NOARGS,
                                "begin($self, /)\n--\n\nOpen the phase on this thread, as `with` "
                                "does. Never raises, never synchronises."},
                               {"end", phase_end, METH_NOARGS,
                                "end($self, /)\n--\n\nClose the innermost open phase of this name "
                                "on this thread. One that is not open is counted."},
                               {"__reduce__", phase_reduce, METH_NOARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyGetSetDef phase_getset[] = {{"name", phase_name, nullptr, "The phase's name.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject phase_type_object = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.Phase";
  type.tp_basicsize = sizeof(Phase);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc =
      "The handle of one phase name: context manager, decorator, begin() and end(). Made by "
      "gpu_phase().";
  type.tp_methods = phase_methods;
  type.tp_getset = phase_getset;
  type.tp_repr = phase_repr;
  type.tp_call = phase_call;
  return type;
}();

PyTypeObject* phase_type() { return &phase_type_object; }

// --- the table of handles ---

PyObject* phases_by_name = nullptr;  // dict: str -> Phase
Phase* too_many_names = nullptr;

Phase* new_phase(PyObject* name, uint32_t id, const std::string& utf8) {
  auto* phase = PyObject_New(Phase, &phase_type_object);
  if (phase == nullptr) return nullptr;
  phase->id = id;
  phase->name = Py_NewRef(name);
  phase->nvtx_domain = nvtx_domain();
  phase->nvtx = nvtx_attributes(utf8);
  phase->enter = new_method(phase, call_enter);
  phase->exit = new_method(phase, call_exit);
  return phase->enter != nullptr && phase->exit != nullptr ? phase : nullptr;
}

/// UTF-8 as run files have it: lone surrogates are encoded like other characters.
bool encode_name(PyObject* name, std::string& utf8) {
  PyObject* bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
  if (bytes == nullptr) return false;
  utf8.assign(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
  Py_DECREF(bytes);
  return true;
}

/// Makes the handle of a new name. Borrowed.
Phase* make_phase(PyObject* name) {
  const Py_ssize_t length = PyUnicode_GET_LENGTH(name);
  if (length == 0) {
    PyErr_SetString(python_hooks.phase_name_error, "a phase name must not be empty");
    return nullptr;
  }
  if (length > kLongestName) {
    PyErr_Format(python_hooks.phase_name_error,
                 "a phase name has at most %zd characters, got %zd: %.64R...", kLongestName, length,
                 name);
    return nullptr;
  }
  std::string utf8;
  if (!encode_name(name, utf8)) return nullptr;
  const std::optional<uint32_t> id = PhaseTable::instance().add(utf8);
  if (!id) {
    if (active_epoch.load(std::memory_order_relaxed) != 0) {
      Recorder::instance().drops().add(Drop::kNames);
      return too_many_names;
    }
    PyErr_Format(
        python_hooks.phase_name_error,
        "more than %u different phase names, the next is %R; a name that holds a number of its own "
        "(f\"step {i}\") is better split into one phase and the step number that every span has "
        "anyway",
        PhaseTable::kCapacity, name);
    return nullptr;
  }
  Phase* phase = new_phase(name, *id, utf8);
  if (phase == nullptr) return nullptr;
  if (PyDict_SetItem(phases_by_name, name, reinterpret_cast<PyObject*>(phase)) != 0) return nullptr;
  return phase;
}

/// The handle of a name, borrowed: handles live for ever.
Phase* find_phase(PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "a phase name must be a str, got %.200s: %.64R",
                 Py_TYPE(name)->tp_name, name);
    return nullptr;
  }
  // Subclasses of str may compare as they like: only their text counts.
  PyObject* text = PyUnicode_FromObject(name);
  if (text == nullptr) return nullptr;
  PyObject* found = PyDict_GetItemWithError(phases_by_name, text);
  auto* phase = reinterpret_cast<Phase*>(found);
  if (phase == nullptr && PyErr_Occurred() == nullptr) phase = make_phase(text);
  Py_DECREF(text);
  return phase;
}

#ifdef Py_GIL_DISABLED

inline Phase* phase_of(PyObject* name) {
  // Without a GIL the cache would need a lock; the dict has its own. Two threads that meet a new
  // name at the same moment may make two handles of it: both work, both names are in the run.
  return find_phase(name);
}

#else

struct CacheEntry {
  PyObject* name;
  Phase* phase;
};
constexpr size_t kCacheEntries = 1024;
CacheEntry cache[kCacheEntries];

inline Phase* phase_of(PyObject* name) {
  const auto address = reinterpret_cast<uintptr_t>(name);
  CacheEntry& entry = cache[(address >> 4 ^ address >> 14) % kCacheEntries];
  if (PIG_LIKELY(entry.name == name)) return entry.phase;
  Phase* phase = find_phase(name);
  if (phase == nullptr || phase == too_many_names || !PyUnicode_CheckExact(name)) return phase;
  PyObject* evicted = entry.name;
  entry = {Py_NewRef(name), phase};
  Py_XDECREF(evicted);
  return phase;
}

#endif

PyObject* phase_reduce(PyObject* self, PyObject*) {
  PyObject* module = PyImport_ImportModule("pyinstrument_gpu");
  if (module == nullptr) return nullptr;
  PyObject* function = PyObject_GetAttrString(module, "gpu_phase");
  Py_DECREF(module);
  if (function == nullptr) return nullptr;
  return Py_BuildValue("N(O)", function, reinterpret_cast<Phase*>(self)->name);
}

// --- Scope ---

PyObject* scope_enter(PyObject* self, PyObject*) {
  auto* scope = reinterpret_cast<Scope*>(self);
  scope->token = begin_token(*scope->phase);
  return Py_NewRef(self);
}

PyObject* scope_exit(PyObject* self, PyObject* const*, Py_ssize_t count) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 3, "__exit__")) return nullptr;
  auto* scope = reinterpret_cast<Scope*>(self);
  const uint64_t token = scope->token;
  scope->token = 0;
  end_token(*scope->phase, token, Closing::kEnd);
  Py_RETURN_NONE;
}

PyObject* scope_name(PyObject* self, void*) {
  return Py_NewRef(reinterpret_cast<Scope*>(self)->phase->name);
}

PyObject* scope_repr(PyObject* self) {
  return PyUnicode_FromFormat("gpu_phase.scope(%R)", reinterpret_cast<Scope*>(self)->phase->name);
}

PyMethodDef scope_methods[] = {
    {"__enter__", scope_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(scope_exit)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef scope_getset[] = {{"name", scope_name, nullptr, "The phase's name.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject scope_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.Scope";
  type.tp_basicsize = sizeof(Scope);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "Times one block and closes exactly the span it opened. Made by gpu_phase.scope().";
  type.tp_methods = scope_methods;
  type.tp_getset = scope_getset;
  type.tp_repr = scope_repr;
  return type;
}();

// --- gpu_phase ---

PyObject* gpu_phase(PyObject*, PyObject* name) {
  return Py_XNewRef(reinterpret_cast<PyObject*>(phase_of(name)));
}

PyObject* gpu_phase_vectorcall(PyObject*, PyObject* const* arguments, size_t nargsf,
                               PyObject* keywords) {
  if (!check_arguments(nargsf, keywords, 1, "gpu_phase")) return nullptr;
  return gpu_phase(nullptr, arguments[0]);
}

PyObject* gpu_phase_scope(PyObject*, PyObject* name) {
  Phase* phase = phase_of(name);
  if (phase == nullptr) return nullptr;
  auto* scope = PyObject_New(Scope, &scope_type);
  if (scope == nullptr) return nullptr;
  scope->phase = phase;
  scope->token = 0;
  return reinterpret_cast<PyObject*>(scope);
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
    "Cost: about 50 ns per use. It does not synchronise, allocate or lock."};

PyMethodDef scope_definition = {"scope", gpu_phase_scope, METH_O,
                                "scope(name, /)\n--\n\n"
                                "A fresh context manager that closes exactly the span it opened, "
                                "also among interleaved generators and coroutines.\n\n"
                                "Slower than gpu_phase(name): it allocates. Errors as there."};

// One object for ever, not one per access: Dynamo knows functions by their address.
PyObject* scope_function = nullptr;

PyObject* gpu_phase_get_scope(PyObject*, void*) { return Py_NewRef(scope_function); }

PyGetSetDef gpu_phase_getset[] = {
    {"scope", gpu_phase_get_scope, nullptr, scope_definition.ml_doc, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject gpu_phase_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.gpu_phase_function";
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_getset = gpu_phase_getset;
  return type;
}();

PyObject* new_gpu_phase(PyObject* module) {
  gpu_phase_type.tp_base = &PyCFunction_Type;
  gpu_phase_type.tp_basicsize = PyCFunction_Type.tp_basicsize;
  gpu_phase_type.tp_traverse = PyCFunction_Type.tp_traverse;
  gpu_phase_type.tp_clear = PyCFunction_Type.tp_clear;
  if (PyType_Ready(&gpu_phase_type) != 0) return nullptr;
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

// --- frames by token, for decorators and steps ---

Phase* phase_argument(PyObject* argument) {
  if (Py_TYPE(argument) == &phase_type_object) return reinterpret_cast<Phase*>(argument);
  PyErr_Format(PyExc_TypeError, "a Phase is needed, got %.200s", Py_TYPE(argument)->tp_name);
  return nullptr;
}

PyObject* frame_begin(PyObject*, PyObject* argument) {
  const Phase* phase = phase_argument(argument);
  return phase != nullptr ? PyLong_FromUnsignedLongLong(begin_token(*phase)) : nullptr;
}

PyObject* close_frame(PyObject* const* arguments, Py_ssize_t count, Closing closing) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 2, "frame_end")) return nullptr;
  const Phase* phase = phase_argument(arguments[0]);
  if (phase == nullptr) return nullptr;
  const uint64_t token = PyLong_AsUnsignedLongLong(arguments[1]);
  if (token == ~uint64_t{0} && PyErr_Occurred() != nullptr) return nullptr;
  end_token(*phase, token, closing);
  Py_RETURN_NONE;
}

PyObject* frame_end(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return close_frame(arguments, count, Closing::kEnd);
}

PyObject* frame_cancel(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return close_frame(arguments, count, Closing::kCancel);
}

PyMethodDef frame_functions[] = {
    {"frame_begin", frame_begin, METH_O, "frame_begin(phase, /)\n--\n\n"},
    {"frame_end", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(frame_end)),
     METH_FASTCALL, "frame_end(phase, token, /)\n--\n\n"},
    {"frame_cancel", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(frame_cancel)),
     METH_FASTCALL, "frame_cancel(phase, token, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

bool add_object(PyObject* module, const char* name, PyObject* object) {
  return object != nullptr && PyModule_AddObjectRef(module, name, object) == 0;
}

}  // namespace

bool add_phase_types(PyObject* module) {
  if (PyType_Ready(&phase_method_type) != 0 || PyType_Ready(&phase_descriptor_type) != 0 ||
      PyType_Ready(&phase_type_object) != 0 || PyType_Ready(&scope_type) != 0)
    return false;
  if (!add_descriptor(phase_type_object.tp_dict, "__enter__", false) ||
      !add_descriptor(phase_type_object.tp_dict, "__exit__", true))
    return false;
  PyType_Modified(&phase_type_object);
  phases_by_name = PyDict_New();
  PyObject* overflow_name = PyUnicode_FromString("(too many names)");
  if (phases_by_name == nullptr || overflow_name == nullptr) return false;
  too_many_names = new_phase(overflow_name, PhaseTable::kTooManyNames, "(too many names)");
  Py_DECREF(overflow_name);
  return too_many_names != nullptr &&
         add_object(module, "Phase", reinterpret_cast<PyObject*>(&phase_type_object)) &&
         add_object(module, "Scope", reinterpret_cast<PyObject*>(&scope_type)) &&
         add_object(module, "gpu_phase", new_gpu_phase(module)) &&
         PyModule_AddFunctions(module, frame_functions) == 0;
}

}  // namespace pig
