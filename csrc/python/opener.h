// SPDX-License-Identifier: Apache-2.0
//
// The statement of the program that has opened something, to tell later that it is over.
//
// What a `with` block or a `for` loop opens is closed as control leaves it. It stays open where an
// exception strikes between two instructions on the way out, and where the object that would close
// it at the latest as it is freed lives on, in a variable of a frame that a traceback holds. But no
// statement outlasts the frame it stands in. So once that frame is off its thread's stack, nobody
// will close what the statement has opened. The same holds if the same `with` of the same frame is
// entered again.
//
// What a call opens, as in `step.__enter__()` or `next(steps)`, may stay open after the frame of
// the call has ended, and is never taken for left over. A generator may be suspended, and so off
// the stack: what counts is the frame that drives it, if that does so by a statement. Who drives a
// coroutine is not known.
#pragma once

#include <Python.h>

namespace pig {

/// Where a frame is in its code, in bytes, as `PyCode_Addr2Line` has it.
int instruction_of(PyFrameObject* frame);

/// A frame of the calling thread's stack, or nullptr: a new reference. To look at callers makes
/// objects, and so may collect garbage, which runs any code.
PyFrameObject* frame_on_stack(const PyFrameObject* frame);

/// With the GIL. No reference to a frame is kept: it would keep the variables of the program.
class Opener {
 public:
  Opener() = default;
  Opener(const Opener& other);
  Opener& operator=(const Opener&) = delete;
  ~Opener() { forget(); }

  /// Notes the statement that the calling thread executes, in the innermost frame but so many.
  void note(int frames = 0);
  void forget();

  /// By the thread that has noted it: whether the statement is certainly over. Walks up the stack.
  /// Any code may run meanwhile, because frame objects are made, which may start the garbage
  /// collector.
  bool is_over() const;

 private:
  struct Place {
    const PyFrameObject* frame = nullptr;  ///< only to be compared
    PyCodeObject* code = nullptr;          ///< owned
    int instruction = 0;                   ///< its offset in bytes
  };
  static Place place_of(PyFrameObject* frame);
  static bool is_on_stack(const Place& place);

  Place nearest_;  ///< in the frame that has called
  Place driver_;   ///< in the nearest frame that is none of a generator, or nowhere
};

}  // namespace pig
