// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>

#include "check.h"
#include "log_reader.h"
#include "record/parts.h"
#include "record/recording_thread.h"
#include "temporary_directory.h"

namespace {

using pig::Recorder;

/// As the module does: what uses the hot path, and what opens and closes its gate, holds it.
std::mutex gil;
uint64_t recorded = 0;  ///< spans since the last start; under `gil`

Recorder& recorder() { return Recorder::instance(); }

void start(pig::RecordingOptions options = {}) {
  options.history_spans = uint64_t{1} << 40;
  options.max_bytes = uint64_t{1} << 40;
  options.environment = "{}";
  const std::lock_guard lock(gil);
  recorder().start(options);
  recorded = 0;
}

void stop() {
  {
    const std::lock_guard lock(gil);
    recorder().close_gate();
  }
  recorder().stop();
}

constexpr pig::Caller kCaller = pig::Caller::of_call(8);

uint32_t phase_id(const std::string& name) {
  static const uint32_t id = *pig::PhaseTable::instance().add(name);
  return id;
}

/// Records some spans if there is a recording.
void record_spans(uint64_t count) {
  const std::lock_guard lock(gil);
  const uint32_t epoch = pig::active_epoch.load();
  if (epoch == 0) return;
  pig::ThreadState* thread = pig::recording_thread(epoch);
  for (uint64_t i = 0; i < count; ++i) {
    thread->begin(phase_id("work"), kCaller);
    thread->end(phase_id("work"), kCaller, pig::read_ticks());
  }
  recorded += count;
}

uint64_t spans_recorded() {
  const std::lock_guard lock(gil);
  return recorded;
}

/// A log as far as these tests need it.
class RecordedRun {
 public:
  explicit RecordedRun(const LogReader::Bytes& bytes) : reader_(bytes) {
    const auto document = reader_.document(2);
    CHECK(document.has_value());
    state_.assign(document->content.begin(), document->content.end());
  }

  /// An integer of STATE.
  uint64_t number(const std::string& key) const {
    const size_t at = state_.find('"' + key + "\":");
    CHECK(at != std::string::npos);
    return std::strtoull(&state_[at + key.size() + 3], nullptr, 10);
  }
  /// The text of a document, empty where there is none.
  std::string document(uint16_t type) const {
    const auto found = reader_.document(type);
    return found ? std::string(found->content.begin(), found->content.end()) : std::string();
  }
  bool says(const std::string& text) const { return state_.find(text) != std::string::npos; }
  bool final() const { return says("\"final\":true"); }

  uint64_t spans() const { return reader_.log(21).items.size() / 40; }
  uint64_t syncs() const { return reader_.log(27).items.size() / 40; }
  uint64_t steps() const { return reader_.log(20).items.size() / 40; }
  uint64_t threads() const {
    const LogReader::Bytes items = reader_.log(18).items;
    uint64_t count = 0;
    for (size_t at = 0; at < items.size(); ++count)
      at += 10 + LogReader::get<uint16_t>(items, at + 8);
    return count;
  }

  /// The words of STATISTICS: spans, steps and device times below which it counts, then the steps
  /// it counts.
  uint64_t statistics_word(size_t index) const {
    const auto document = reader_.document(3);
    CHECK(document.has_value());
    return LogReader::get<uint64_t>(document->content, 8 * index);
  }
  bool has_statistics() const { return reader_.document(3).has_value(); }

 private:
  LogReader reader_;
  std::string state_;
};

RecordedRun recorded_run() { return RecordedRun(recorder().log_bytes()); }

RecordedRun run_in_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return RecordedRun(LogReader::Bytes(std::istreambuf_iterator<char>(file), {}));
}

/// The run has all that was recorded since the last start.
void check_whole(const RecordedRun& run) {
  const uint64_t spans = spans_recorded();
  CHECK(run.final());
  CHECK_EQ(run.number("phases_recorded"), spans);
  CHECK_EQ(run.spans() + run.number("ring_full"), spans);
  CHECK_EQ(run.statistics_word(0), run.spans());
}

void test_many_recordings_of_many_threads() {
  constexpr int kThreads = 4;
  constexpr int kRecordings = 100;
  std::atomic<bool> done{false};
  std::array<std::thread, kThreads> threads;
  for (auto& thread : threads)
    thread = std::thread([&] {
      while (!done.load()) {
        record_spans(50);
        std::this_thread::yield();
      }
    });
  for (int i = 0; i < kRecordings; ++i) {
    start();
    while (spans_recorded() < 1000) std::this_thread::yield();
    stop();
    const RecordedRun run = recorded_run();
    check_whole(run);
    CHECK(run.threads() <= kThreads);
    CHECK(recorder().log_bytes().empty());
  }
  done.store(true);
  for (auto& thread : threads) thread.join();
}

void test_threads_that_end() {
  constexpr uint64_t kShortThreads = 300;
  start();
  record_spans(10);
  for (uint64_t i = 0; i < kShortThreads; i += 3) {
    // At the same time, so that the harvester meets living and ended ones.
    std::array<std::thread, 3> threads;
    for (auto& thread : threads) thread = std::thread([i] { record_spans(i + 1); });
    for (auto& thread : threads) thread.join();
    if (i % 30 == 0) recorder().flush();
  }
  std::thread([] {
    const std::lock_guard lock(gil);
    pig::recording_thread(pig::active_epoch.load())->begin(phase_id("work"), kCaller);
  }).join();
  stop();
  const RecordedRun run = recorded_run();
  check_whole(run);
  CHECK_EQ(run.threads(), 1 + kShortThreads + 1);
  CHECK_EQ(run.number("open_at_thread_end"), 1u);
}

/// Flushes from as many threads as like, also while the recording stops.
void test_flushing_from_many_threads() {
  std::atomic<bool> done{false};
  std::array<std::thread, 3> threads;
  for (auto& thread : threads)
    thread = std::thread([&] {
      while (!done.load()) recorder().flush();
    });
  for (int i = 0; i < 200; ++i) {
    start();
    record_spans(100);
    recorder().flush();
    stop();
    check_whole(recorded_run());
  }
  done.store(true);
  for (auto& thread : threads) thread.join();
}

std::atomic<uint64_t> injected_now{0};

/// A step is in the history below STATISTICS if and only if STATISTICS counts it: readers add those
/// above.
void test_statistics_count_the_steps_of_the_history() {
  pig::inject_tick_function([] { return injected_now.load(); });
  start();
  constexpr int kFlushes = 100;
  constexpr int kStepsPerFlush = 400;  // what is not flushed has room
  std::atomic<int> flushes{0};
  std::thread trainer([&] {
    for (int steps = 0; steps < kFlushes * kStepsPerFlush;) {
      if (steps >= (flushes.load() + 1) * kStepsPerFlush) {
        std::this_thread::yield();
        continue;
      }
      const std::lock_guard lock(gil);
      const auto* thread = pig::recording_thread(pig::active_epoch.load());
      for (int i = 0; i < 10; ++i, ++steps) {
        const auto step = pig::parts().steps().begin(thread->serial());
        pig::parts().steps().end(*step, true);
      }
    }
  });
  while (flushes.load() < kFlushes) {
    injected_now += 2'000'000'000;  // statistics are due
    recorder().flush();
    const RecordedRun run = recorded_run();
    CHECK(run.has_statistics());
    CHECK_EQ(run.statistics_word(3), run.statistics_word(1));
    ++flushes;
  }
  trainer.join();
  stop();
  const RecordedRun run = recorded_run();
  CHECK(run.final());
  CHECK_EQ(run.steps(), uint64_t{kFlushes} * kStepsPerFlush);
  CHECK_EQ(run.statistics_word(3), run.steps());
  pig::inject_tick_function(nullptr);
}

/// Also where there is nothing else: the harvester looks at everything only once a second. The
/// clock stands still here, so that this second never passes.
void test_whatever_is_new_gets_into_the_log() {
  pig::inject_tick_function([] { return injected_now.load(); });
  start();
  record_spans(1);
  pig::ThreadState* thread = pig::recording_thread(pig::active_epoch.load());
  const uint64_t begin = injected_now.load();
  // With the heartbeat that is due then.
  const auto becomes_true = [begin](auto is_true) {
    const uint64_t now_ns = (injected_now += 100'000'000) - begin;
    for (;;) {
      const RecordedRun run = recorded_run();
      if (run.number("now_ns") >= now_ns && is_true(run)) return;
      std::this_thread::yield();
    }
  };
  becomes_true([](const RecordedRun& run) { return run.spans() == 1; });
  const uint32_t frame = thread->begin(phase_id("work"), kCaller);
  becomes_true([](const RecordedRun& run) { return run.says("\"open\":[[0,0,"); });
  thread->rename_frame(frame, *pig::PhaseTable::instance().add("other"));
  becomes_true([](const RecordedRun& run) { return run.says("\"open\":[[0,1,"); });
  thread->cancel_frame(frame);
  becomes_true([](const RecordedRun& run) { return run.says("\"open\":[]"); });
  // What begins between a tick's time and its look at what is open.
  injected_now += 1'000;
  thread->begin(phase_id("work"), kCaller);
  const auto step = pig::parts().steps().begin(thread->serial());
  injected_now -= 1'000;
  recorder().harvest_now();
  CHECK(recorded_run().says("\"open_step\":null,\"open\":[]"));
  becomes_true([](const RecordedRun& run) {
    return run.says("\"open_step\":{\"serial\":0,") && run.says("\"open\":[[0,0,");
  });
  thread->end(phase_id("work"), kCaller, pig::read_ticks());
  pig::parts().steps().add_item(*step, 8);
  becomes_true([](const RecordedRun& run) { return run.says("\"items\":1"); });
  pig::parts().steps().end(*step, true);
  becomes_true([](const RecordedRun& run) { return run.steps() == 1; });
  pig::parts().metrics.append(1, {{"loss", 0.5, 0}});
  becomes_true([](const RecordedRun& run) { return run.number("metrics") == 1; });
  const auto site = pig::parts().syncs.add_site({1, 0, "file", "function"});
  pig::parts().syncs.add({0, -1, 0, *site, pig::kNoPath, pig::kNoStep, 0});
  becomes_true([](const RecordedRun& run) { return run.syncs() == 1; });
  pig::parts().syncs.watch(true, false);
  becomes_true([](const RecordedRun& run) { return !run.document(4).empty(); });
  pig::parts().documents.set(pig::BlockType::kMemory, "{}");
  becomes_true([](const RecordedRun& run) { return run.document(7) == "{}"; });
  pig::count_drop(pig::Drop::kDepth);
  becomes_true([](const RecordedRun& run) { return run.number("depth") == 1; });
  std::thread([] {
    pig::recording_thread(pig::active_epoch.load())->begin(phase_id("work"), kCaller);
  }).join();
  becomes_true([](const RecordedRun& run) { return run.number("open_at_thread_end") == 1; });
  stop();
  pig::inject_tick_function(nullptr);
}

pig::RecordingOptions into_file(const std::string& path) {
  pig::RecordingOptions options;
  options.path = path;
  return options;
}

/// What a forked child may rely on. It exits with 0, or a check fails, or the alarm ends its hang.
void child_after_fork(uint32_t epoch_of_parent) {
  alarm(60);
  CHECK_EQ(pig::active_epoch.load(), 0u);
  CHECK_EQ(pig::open_step.load(), pig::kNoOpenStep);
  CHECK(!recorder().recording());
  recorder().flush();
  start();
  // Tokens of all the parent's recordings, which decorators may hold here, must not fit this one.
  CHECK(pig::active_epoch.load() > epoch_of_parent);
  record_spans(100);
  std::thread([] { record_spans(100); }).join();
  CHECK(pig::parts().steps().begin(0).has_value());
  recorder().flush();
  stop();
  const RecordedRun run = recorded_run();
  CHECK_EQ(spans_recorded(), 200u);
  check_whole(run);
  CHECK_EQ(run.steps(), 1u);
  CHECK_EQ(run.threads(), 2u);
  _exit(0);
}

[[maybe_unused]] void test_forked_children(const TemporaryDirectory& directory) {
  constexpr int kChildren = 40;
  const std::string path = directory / "parent.gpurun";
  start(into_file(path));
  // Something for the locks to be held by while the fork happens.
  std::atomic<bool> done{false};
  std::thread flusher([&] {
    while (!done.load()) recorder().flush();
  });
  std::thread worker([&] {
    while (!done.load()) record_spans(100);
  });
  record_spans(1);
  CHECK(pig::parts().steps().begin(0).has_value());
  const uint32_t epoch = pig::active_epoch.load();
  for (int i = 0; i < kChildren; ++i) {
    pid_t child;
    {
      const std::lock_guard lock(gil);  // as os.fork() does
      child = fork();
    }
    CHECK(child >= 0);
    if (child == 0) child_after_fork(epoch);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
  done.store(true);
  flusher.join();
  worker.join();
  stop();
  const RecordedRun run = run_in_file(path);
  check_whole(run);
  CHECK_EQ(run.steps(), 1u);
  CHECK(recorder().error().empty());
}

/// What is recorded between the two is in no run.
void test_scratch() {
  start();
  record_spans(5);
  pig::parts().begin_scratch();
  record_spans(20'000);
  pig::parts().end_scratch();
  record_spans(5);
  stop();
  const RecordedRun run = recorded_run();
  CHECK_EQ(run.spans(), 10u);
  CHECK_EQ(run.threads(), 1u);
}

}  // namespace

int main() {
  Recorder::install_fork_handler();
  const TemporaryDirectory directory;
  test_scratch();
  test_threads_that_end();
  test_many_recordings_of_many_threads();
// Not under sanitizers: what they lock for themselves stays locked in the child of a process with
// many threads. Nor under qemu-user, which aborts when such a child starts a thread.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  if (std::getenv("PIG_EMULATED") == nullptr) test_forked_children(directory);
#endif
  test_statistics_count_the_steps_of_the_history();
  test_whatever_is_new_gets_into_the_log();
  test_flushing_from_many_threads();
}
