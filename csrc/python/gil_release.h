// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>
#include <unistd.h>

namespace pig {

/// Gives the GIL away for as long as it lives.
///
/// A daemon thread may want the GIL back while the interpreter ends. Before Python 3.14 CPython
/// then ends the thread by pthread_exit, which unwinds its stack, and unwinding through a
/// destructor or any other noexcept function calls std::terminate: the program, which was about to
/// end well, would abort. So the unwinding is caught here and the thread sleeps until the process
/// is gone, as it does in Python 3.14. It holds none of our locks: what a scope locks it has to
/// unlock before the GIL comes back, so locks stand after this object.
///
/// Giving it away and taking it back costs about 30 ns where nobody else wants it.
class GilRelease {
 public:
  GilRelease() : thread_(give_away()) {}
  ~GilRelease() { take_back(thread_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

  /// The same in two calls.
  static void* give_away() { return PyEval_SaveThread(); }
  static void take_back(void* thread) noexcept {
    try {
      PyEval_RestoreThread(static_cast<PyThreadState*>(thread));
    } catch (...) {  // a C function: nothing but pthread_exit's unwinding comes out of it
      for (;;) pause();
    }
  }

 private:
  void* const thread_;
};

/// Has the GIL while `use` runs, on a thread of our own that Python doesn't know. False, without
/// having run it, where there is no memory for the thread's state: CPython 3.11 crashes in making
/// one then. While the interpreter ends it doesn't return, for the same reason as above.
template <typename Use>
bool with_gil(Use use) noexcept {
  void* const room = PyMem_RawMalloc(64 * 1024);
  PyMem_RawFree(room);
  if (room == nullptr) return false;
  try {
    const PyGILState_STATE state = PyGILState_Ensure();
    use();
    PyGILState_Release(state);
  } catch (...) {
    for (;;) pause();
  }
  return true;
}

}  // namespace pig
