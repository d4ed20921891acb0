// SPDX-License-Identifier: Apache-2.0
//
// What a wrapper of automatic phases asks first. Nearly all calls are inside an activity (those of
// submodules, above all) and have nothing to do there, so asking has to be cheap: a number per
// thread. It is that of the session, so that a flag which Ctrl-C has kept from being taken back
// means nothing to the next one.
#include <atomic>
#include <cstdint>

#include "python/bindings.h"

namespace pig {
namespace {

std::atomic<uint64_t> session{1};
thread_local uint64_t session_of_activity = 0;

PyObject* begin_activities(PyObject*, PyObject*) {
  session.fetch_add(1, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyObject* in_activity(PyObject*, PyObject*) {
  const bool is_inside = session_of_activity == session.load(std::memory_order_relaxed);
  return PyBool_FromLong(is_inside ? 1 : 0);
}

PyObject* set_in_activity(PyObject*, PyObject* on) {
  session_of_activity = on == Py_True ? session.load(std::memory_order_relaxed) : 0;
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef activity_functions[] = {
    {"begin_activities", begin_activities, METH_NOARGS, "begin_activities()\n--\n\n"},
    {"in_activity", in_activity, METH_NOARGS, "in_activity()\n--\n\n"},
    {"set_in_activity", set_in_activity, METH_O, "set_in_activity(on, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace pig
