// SPDX-License-Identifier: Apache-2.0
//
// Where a thread is in the program: its frames, and the instruction that each of them has come to.
// In one iteration of a loop these only go forward, so a call that lies before an earlier one
// belongs to a later iteration.
#pragma once

#include <frameobject.h>  // for Python 3.10
#include <pybind11/pybind11.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace pig {

class ProgramPlace {
 public:
  /// A frame in which two places are apart.
  struct Apart {
    pybind11::object code;
    int before, now;
  };

  /// Takes over the calling thread's place, or none where it is too deep. With the GIL. Throws
  /// bad_alloc.
  void take() {
    frames_.clear();
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != nullptr) {
      auto code = pybind11::reinterpret_steal<pybind11::object>(
          reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
      if (frames_.size() < kMostFrames) frames_.push_back({std::move(code), instruction_of(frame)});
      PyFrameObject* const caller = PyFrame_GetBack(frame);
      Py_DECREF(frame);
      frame = caller;
    }
    if (frames_.size() == kMostFrames) frames_.clear();
    std::reverse(frames_.begin(), frames_.end());
  }

  /// The outermost frame that has gone on or back since. Nothing where there is none, or another
  /// function runs in its place.
  std::optional<Apart> until(const ProgramPlace& now) const {
    const auto [before, then] =
        std::mismatch(frames_.begin(), frames_.end(), now.frames_.begin(), now.frames_.end(),
                      [](const Frame& one, const Frame& other) {
                        return one.code.is(other.code) && one.instruction == other.instruction;
                      });
    if (before == frames_.end() || then == now.frames_.end() || !before->code.is(then->code))
      return std::nullopt;
    return Apart{then->code, before->instruction, then->instruction};
  }

 private:
  static constexpr size_t kMostFrames = 512;

  struct Frame {
    pybind11::object code;
    int instruction;  ///< its offset in bytes
  };

  static int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return 2 * frame->f_lasti;
#endif
  }

  std::vector<Frame> frames_;  ///< the outermost first
};

}  // namespace pig
