// SPDX-License-Identifier: Apache-2.0
#include "python/recording_owner.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "hot/nvtx_range.h"
#include "python/gil_release.h"
#include "python/python_hooks.h"
#include "python/stall_answer.h"
#include "record/parts.h"
#include "record/recorder.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

/// The parent's stays as it is in a forked child, where its lock may be held forever.
std::shared_ptr<RecordingOwner>* current_owner = new std::shared_ptr<RecordingOwner>;

constexpr std::chrono::milliseconds kStallPatience{1000};

py::bytes bytes_of(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

RecordingOwner::RecordingOwner(const py::object& recording, int frames)
    : recording_(recording),
      pid_(getpid()),
      thread_(PyThread_get_thread_ident()),
      result_(py::none()) {
  opener_.note(frames);
}

std::shared_ptr<RecordingOwner> RecordingOwner::current() {
  const bool is_mine = *current_owner != nullptr && (*current_owner)->pid_ == getpid();
  return is_mine ? *current_owner : nullptr;
}

std::shared_ptr<RecordingOwner> RecordingOwner::of(const py::object& recording) {
  std::shared_ptr<RecordingOwner> found = current();
  return found != nullptr && found->recording_.is(recording) ? found : nullptr;
}

bool RecordingOwner::claim(const py::object& recording, int frames) {
  // First: to note the statement may run any code.
  auto claiming = std::make_shared<RecordingOwner>(recording, frames);
  if (current() != nullptr) return false;
  if (*current_owner != nullptr)
    current_owner = new std::shared_ptr<RecordingOwner>;  // it is the parent's
  *current_owner = std::move(claiming);
  return true;
}

void RecordingOwner::release() { current_owner->reset(); }

bool RecordingOwner::is_left_over() const {
  return thread_ == PyThread_get_thread_ident() && opener_.is_over();
}

py::tuple RecordingOwner::stop(const py::object& environment) {
  Recorder& recorder = Recorder::instance();
  if (!std::exchange(is_stopping_, true)) {
    recorder.close_gate();
    forget_step_calls();
    set_nvtx_enabled(true);
  }
  // Where there is no memory for it, the last one stands.
  if (!environment.is_none())
    with_memory(false, [&] {
      parts().documents.set(BlockType::kEnvironment, py::cast<std::string>(environment));
      return true;
    });
  {
    const GilRelease release;
    const std::lock_guard lock(log_mutex_);
    if (!has_ended_) {
      recorder.stop();
      wait_for_stall_answers(kStallPatience);
      error_ = recorder.error();
      log_ = recorder.log_bytes();
      has_ended_ = true;
    }
  }
  return result();
}

py::object RecordingOwner::log_bytes() {
  std::vector<uint8_t> log;
  bool has_ended = false;
  {
    const GilRelease release;
    const std::lock_guard lock(log_mutex_);
    has_ended = has_ended_;
    if (!has_ended) log = Recorder::instance().log_bytes();
  }
  return has_ended ? py::object(result()[1]) : bytes_of(log);
}

py::tuple RecordingOwner::result() {
  if (result_.is_none()) {
    // Unlike pybind11's, its error is a MemoryError.
    result_ = py::reinterpret_steal<py::object>(
        Py_BuildValue("(zN)", error_.empty() ? nullptr : error_.c_str(),
                      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(log_.data()),
                                                static_cast<Py_ssize_t>(log_.size()))));
    if (!result_) {
      result_ = py::none();
      throw py::error_already_set();
    }
    log_ = {};
  }
  return result_;
}

}  // namespace pig
