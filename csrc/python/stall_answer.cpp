// SPDX-License-Identifier: Apache-2.0
#include "python/stall_answer.h"

#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/threads.h"
#include "base/throwing.h"
#include "python/gil_release.h"
#include "python/python_hooks.h"
#include "python/stall_program.h"
#include "record/parts.h"

namespace pig {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr size_t kMostTraceback = 128 << 10;

/// Threads that wait for the GIL. The process is forked without them.
std::atomic<int> open_answers{0};

struct Answer {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_finished = false;  ///< Python answers, or never will
};

/// Starts a thread that takes no signals and nobody waits for.
template <typename Function>
bool start_thread(Function function) {
  const SignalsBlocked blocked;
  try {
    std::thread thread(std::move(function));
    pthread_setname_np(thread.native_handle(), "pig-stall");
    thread.detach();
    return true;
  } catch (const std::exception&) {  // no thread, or no memory for one
    return false;
  }
}

void finish(Answer& answer) {
  open_answers.fetch_sub(1);
  {
    const std::lock_guard lock(answer.mutex);
    answer.is_finished = true;
  }
  answer.changed.notify_all();
}

/// Has Python answer, once it has the GIL.
void answer_with_gil(const std::shared_ptr<Answer>& answer) noexcept {
  const bool has_answered = with_gil([&] {
    finish(*answer);
    if (PyObject* function = python_hooks.notices[static_cast<size_t>(Notice::kStall)])
      call_unraisably(function);
  });
  // Without memory nothing is said: nobody has waited for the GIL.
  if (!has_answered) finish(*answer);
}

/// Null where there is no thread for it.
std::shared_ptr<Answer> have_answered() {
  auto answer = std::make_shared<Answer>();
  open_answers.fetch_add(1);
  if (start_thread([answer] { answer_with_gil(answer); })) return answer;
  open_answers.fetch_sub(1);
  return nullptr;
}

using Dump = const char* (*)(int, PyInterpreterState*, PyThreadState*);

/// CPython's function that prints the stacks of all threads; null where it is not exported, as
/// in 3.10, 3.13 and 3.14. May wait for a thread that loads a library.
Dump function_of_cpython() {
#if PY_VERSION_HEX >= 0x030F0000
  return nullptr;  // it takes other arguments there
#else
  return reinterpret_cast<Dump>(dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
#endif
}

/// The stacks of all threads as CPython prints them, without the GIL; nothing where it can't, or
/// where Python answers after all.
std::optional<std::string> traceback_without_gil(Answer& answer) {
  const Dump dump = function_of_cpython();
  const int file = dump == nullptr ? -1 : memfd_create("pyinstrument_gpu stall", MFD_CLOEXEC);
  {
    // Who gets the GIL meanwhile keeps it until the lock is free: no thread runs Python code, but
    // for the few instructions in which the one that had the GIL sees that another wants it.
    const std::lock_guard lock(answer.mutex);
    if (answer.is_finished) {
      if (file >= 0) ::close(file);
      return std::nullopt;
    }
    if (file >= 0) dump(file, PyInterpreterState_Main(), nullptr);
  }
  if (file < 0) return std::string();
  std::string text(kMostTraceback, '\0');
  const ssize_t length = pread(file, text.data(), text.size(), 0);
  ::close(file);
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

void wait_for_answer(const std::shared_ptr<Answer>& answer, uint64_t number,
                     const std::string& sentence) {
  {
    std::unique_lock lock(answer->mutex);
    answer->changed.wait_for(lock, kPatience, [&] { return answer->is_finished; });
    if (answer->is_finished) return;
  }
  std::optional<std::string> traceback = traceback_without_gil(*answer);
  if (!traceback) return;
  StallLog& stalls = parts().stalls.log();
  if (!traceback->empty()) stalls.add_traceback(number, std::move(*traceback));
  if (!stalls.may_be_said(number)) return;
  const std::string line = "pyinstrument_gpu: " + sentence +
                           "; a thread has held Python's GIL for 5 s and does not give it away\n";
  // Where it is a pipe that nobody reads, this thread waits, and nobody for it.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void forget_stall_answers_in_child() { open_answers.store(0); }

void answer_stall() noexcept {
  try_allocating([] {
    const auto stall = parts().stalls.log().newest();
    if (!stall || Py_IsInitialized() == 0) return;
    start_thread([] { try_allocating([] { run_stall_program(); }); });
    const auto answer = have_answered();
    if (answer == nullptr) return;
    start_thread([answer, stall] {
      // Without memory nothing is said.
      try_allocating([&] { wait_for_answer(answer, stall->first, stall->second); });
    });
  });
}

void wait_for_stall_answers(std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPoll{1};
  for (; open_answers.load() > 0 && patience.count() > 0; patience -= kPoll)
    std::this_thread::sleep_for(kPoll);
}

}  // namespace pig
