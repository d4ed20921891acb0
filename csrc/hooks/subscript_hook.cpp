// SPDX-License-Identifier: Apache-2.0
//
// Indexing, hooked below the Python object.
//
// To assign a Python function to `torch.Tensor.__getitem__` would fill two slots of the type:
// `mp_subscript` and `sq_item`. The second stays filled when the attribute has gone, and a tensor
// is a sequence for CPython from then on (`torch.tensor([torch.tensor(1.)])` fails). So no
// attribute is touched here. What indexes a tensor ends in a C function of torch's base class, by
// one of two ways: the slot of the tensor's type, or the wrapper that stands as `__getitem__` in
// the base class and has the function's address as well. Both are pointed at the hook.
//
// A type that is made while the hook is in place takes its slots from these wrappers. So the tree
// of subclasses is walked on removal again, after the wrappers have their functions back. A type
// whose slot is something else, as of a class with a `__getitem__` in Python, is left alone; it
// gets here through `super()`. `__setitem__` and `__delitem__` are one slot.
//
// The originals are saved once. A thread may still be inside the hook when it is removed, so what
// it needs to call through stays forever.
#include "hooks/call_hook.h"

namespace pig {
namespace {

PyTypeObject* base_type = nullptr;
binaryfunc original_get = nullptr;
objobjargproc original_set = nullptr;
/// Of the calls of one of the two functions, with their listeners.
struct HookedSubscript {
  CallObservers observers;
  CallListeners listeners;
};
HookedSubscript get, set;

PyObject* hooked_get(PyObject* tensor, PyObject* index) {
  return get.observers.around({tensor, &index, 1}, [&] { return original_get(tensor, index); });
}

int hooked_set(PyObject* tensor, PyObject* index, PyObject* value) {
  if (value == nullptr) return original_set(tensor, index, value);
  PyObject* const others[] = {index, value};
  PyObject* result = set.observers.around({tensor, others, 2}, [&] {
    return original_set(tensor, index, value) == 0 ? Py_NewRef(Py_None) : nullptr;
  });
  Py_XDECREF(result);
  return result != nullptr ? 0 : -1;
}

constexpr const char* kNames[] = {"__getitem__", "__setitem__", "__delitem__"};

/// The wrapper of a base class's slot, as a borrowed reference; nullptr where it is none.
PyWrapperDescrObject* wrapper_of(PyTypeObject* type, const char* name) {
  PyObject* attribute = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name);
  PyErr_Clear();
  Py_XDECREF(attribute);  // the class has it
  if (attribute == nullptr || !Py_IS_TYPE(attribute, &PyWrapperDescr_Type)) return nullptr;
  auto* wrapper = reinterpret_cast<PyWrapperDescrObject*>(attribute);
  return PyDescr_TYPE(wrapper) == type ? wrapper : nullptr;
}

struct Functions {
  binaryfunc get;
  objobjargproc set;
};

/// In a type and those below it. What can't be listed, for lack of memory, is left as it is, which
/// is no harm: the hook calls through.
void replace_slots(PyTypeObject* type, const Functions& from, const Functions& to) {
  if (PyMappingMethods* slots = type->tp_as_mapping) {
    if (slots->mp_subscript == from.get) slots->mp_subscript = to.get;
    if (slots->mp_ass_subscript == from.set) slots->mp_ass_subscript = to.set;
  }
  PyObject* subclasses =
      PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyType_Type), "__subclasses__", "O", type);
  if (subclasses == nullptr) {
    PyErr_Clear();
    return;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(subclasses); ++i)
    replace_slots(reinterpret_cast<PyTypeObject*>(PyList_GET_ITEM(subclasses, i)), from, to);
  Py_DECREF(subclasses);
}

/// The wrappers first: a type that another thread makes meanwhile is then right.
void replace(const Functions& from, const Functions& to) {
  for (const char* name : kNames)
    if (PyWrapperDescrObject* wrapper = wrapper_of(base_type, name))
      wrapper->d_wrapped =
          name == kNames[0] ? reinterpret_cast<void*>(to.get) : reinterpret_cast<void*>(to.set);
  replace_slots(base_type, from, to);
}

/// Whether a class is as the hook expects it, with functions that are not ours.
bool is_as_expected(PyTypeObject* type) {
  const PyMappingMethods* slots = type->tp_as_mapping;
  if (slots == nullptr || slots->mp_subscript == nullptr || slots->mp_ass_subscript == nullptr ||
      slots->mp_subscript == hooked_get || slots->mp_ass_subscript == hooked_set)
    return false;
  for (const char* name : kNames) {
    const PyWrapperDescrObject* wrapper = wrapper_of(type, name);
    if (wrapper == nullptr ||
        wrapper->d_wrapped != (name == kNames[0]
                                   ? reinterpret_cast<void*>(slots->mp_subscript)
                                   : reinterpret_cast<void*>(slots->mp_ass_subscript)))
      return false;
  }
  return true;
}

}  // namespace

bool hook_subscripts(PyObject* base, PyObject* enter_get, PyObject* enter_set, PyObject* leave,
                     QuickCheck quick_check) {
#ifdef Py_GIL_DISABLED
  return false;  // other threads may be reading the slots
#endif
  if (!PyType_Check(base)) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(base);
  const bool is_hooked = !get.observers.empty();
  if (is_hooked ? type != base_type : !is_as_expected(type)) return false;
  if (base_type != nullptr && type != base_type) return false;
  if (!get.listeners.add(get.observers, enter_get, leave, quick_check)) return false;
  set.listeners.add(set.observers, enter_set, leave, quick_check);
  if (is_hooked) return true;
  if (base_type == nullptr) Py_INCREF(base);  // for good
  base_type = type;
  original_get = type->tp_as_mapping->mp_subscript;
  original_set = type->tp_as_mapping->mp_ass_subscript;
  replace({original_get, original_set}, {hooked_get, hooked_set});
  return true;
}

void unhook_subscripts(PyObject* leave) {
  const bool was_hooked = !get.observers.empty();
  get.listeners.remove(get.observers, leave);
  set.listeners.remove(set.observers, leave);
  if (was_hooked && get.observers.empty())
    replace({hooked_get, hooked_set}, {original_get, original_set});
}

}  // namespace pig
