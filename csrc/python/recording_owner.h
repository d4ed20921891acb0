// SPDX-License-Identifier: Apache-2.0
//
// Whose recording it is. A process has at most one recording, and the Python object that has
// started it is its owner, from within the call that starts it until it lets go of it. By then it
// has the log, and all sinks have had the rest.
//
// Every call for a recording names the object, and does nothing where that is not the owner. So
// however many threads start and stop recordings, none gets another's log. And nothing is held
// between two instructions of Python, where an exception could strike: what one has interrupted is
// asked for again, and gives the same.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "python/opener.h"

namespace pig {

/// With the GIL.
class RecordingOwner {
 public:
  /// Null where there is none, and in a forked child until it starts a recording itself.
  static std::shared_ptr<RecordingOwner> current();
  /// Null where the object is not the owner.
  static std::shared_ptr<RecordingOwner> of(const pybind11::object& recording);

  /// Makes an object the owner of the recording that is about to be started. False if there is one.
  /// `frames`: how many innermost frames of Python are not the program's.
  static bool claim(const pybind11::object& recording, int frames);
  /// Ends the ownership.
  static void release();

  const pybind11::object& recording() const { return recording_; }
  /// Whether the `with` block that has started it is certainly over, as seen from this thread.
  bool is_left_over() const;

  /// Stops the recording. Returns what ended the writing of its history, or None, and the log: that
  /// of a recording in memory, or all but the history of one in a file. A second call returns the
  /// same. Throws std::bad_alloc where there is no memory for the log: the recording has stopped
  /// then, and another call may have more luck. `environment`: its last version as bytes, or None.
  pybind11::tuple stop(const pybind11::object& environment);
  /// The log as it is now.
  pybind11::object log_bytes();

  RecordingOwner(const pybind11::object& recording, int frames);

 private:
  pybind11::tuple result();

  const pybind11::object recording_;
  const pid_t pid_;
  const unsigned long thread_;
  Opener opener_;
  bool is_stopping_ = false;
  pybind11::object result_;  ///< none until it has been stopped

  std::mutex log_mutex_;  ///< never waited for with the GIL
  bool has_ended_ = false;
  std::string error_;
  std::vector<uint8_t> log_;  ///< the last one, until `result_` has it
};

}  // namespace pig
