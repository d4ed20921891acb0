// SPDX-License-Identifier: Apache-2.0
//
// A step that the program itself has opened, by `gpu_steps` or `gpu_step`. Inside an open step it
// is a phase "step" instead.
//
// It is opened and closed by one call of the interpreter each, and keeps its tokens itself: no
// exception comes between the opening and the place where it is noted what to close. Where one has
// kept a step from being closed all the same, the next step closes it (opener.h).
#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>

#include "python/opener.h"

namespace pig {

/// With the GIL.
class OpenStep {
 public:
  OpenStep() = default;
  OpenStep(const OpenStep&) = delete;
  OpenStep& operator=(const OpenStep&) = delete;

  /// Closes what was left over, and opens the step. False with a Python error set, and then nothing
  /// is open.
  /// Without a range for tools, `show` begins it later.
  bool begin(bool with_range = true);
  void show();
  void add_item(double samples);
  void end(bool complete);
  /// There was nothing to be done in it: it is none.
  void drop();

  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }
  /// Whether it is a step of the recording, and no phase.
  bool is_counted() const { return token_ > 0; }

 private:
  static void close_left_over();
  void link();
  void unlink();
  void leave_list();  ///< with its lock

  std::atomic<bool> is_open_{false};
  int64_t token_ = 0;
  uint64_t frame_ = 0;  ///< of the phase "step"
  bool has_range_ = false;

  // Of a step that is recorded, which stands in the list of all that are open.
  Opener opener_;
  uint32_t epoch_ = 0;
  uint32_t thread_ = 0;
  uint64_t number_ = 0;
  bool is_linked_ = false;
  OpenStep* outer_ = nullptr;
  OpenStep* inner_ = nullptr;
};

/// The handle of the phase "step" is made. Returns false with a Python error set.
bool ready_open_step();

/// Called without arguments before a step is opened, if not None. What it raises reaches the
/// program.
void set_before_step(PyObject* function);

}  // namespace pig
