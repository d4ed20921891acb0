// SPDX-License-Identifier: Apache-2.0
//
// What a wrapper of automatic phases asks first. Nearly all calls are inside an activity (those of
// submodules, above all) and have nothing to do there, so asking has to be cheap: a flag per
// thread.
#include "activity_functions.h"

namespace pig {
namespace {

thread_local bool is_in_activity = false;

PyObject* in_activity(PyObject*, PyObject*) { return PyBool_FromLong(is_in_activity ? 1 : 0); }

PyObject* set_in_activity(PyObject*, PyObject* on) {
  is_in_activity = on == Py_True;
  Py_RETURN_NONE;
}

PyMethodDef activity_functions[] = {
    {"in_activity", in_activity, METH_NOARGS, "in_activity()\n--\n\n"},
    {"set_in_activity", set_in_activity, METH_O, "set_in_activity(on, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_activity_functions(PyObject* module) {
  return PyModule_AddFunctions(module, activity_functions) == 0;
}

}  // namespace pig
