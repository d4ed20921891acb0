// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "hot/path_table.h"
#include "hot/thread_state.h"
#include "record/span_statistics.h"
#include "record/step_tracker.h"

namespace {

using pig::Caller;
using pig::Drop;
using pig::OpenFrame;
using pig::RawSpan;
using pig::Scope;
using pig::SpanRing;
using pig::ThreadState;

/// The time of the thread that records. It moves when the test says so.
thread_local uint64_t now = 0;

constexpr uint32_t kEpoch = 7;
constexpr uint32_t kSerial = 3;
constexpr Caller kCall = Caller::of_call(8);
constexpr uint32_t kA = 10, kB = 11, kC = 12;
constexpr uint64_t kRing = SpanRing::kSpans;

/// A thread's state with all that it needs, and no recorder.
struct Recording {
  Recording() {
    now = 0;
    clock.start();
    steps.reset({clock, drops, {}});
    overflow.reset(clock, drops);
    thread.reset({&paths, &drops, &overflow, [] { ++wakes; }}, kEpoch, kSerial);
    wakes = 0;
  }

  uint32_t begin_at(uint64_t at, uint32_t phase, Caller caller = kCall) {
    now = at;
    return thread.begin(phase, caller);
  }
  void end_at(uint64_t at, uint32_t phase, Caller caller = kCall) {
    if (!thread.end(phase, caller, at) && !thread.end_any(phase, caller, at))
      drops.add(Drop::kUnmatchedEnds);
  }
  std::vector<RawSpan> drain() {
    std::vector<RawSpan> spans;
    std::vector<SpanRing::Events> events;
    thread.ring().drain(spans, events);
    return spans;
  }
  /// What was folded since the last call.
  pig::StatisticsTable folded() {
    pig::SpanStatistics statistics(steps);
    overflow.take(statistics);
    pig::StatisticsTable table;
    statistics.merge_into(table);
    return table;
  }
  std::vector<OpenFrame> open() const {
    std::vector<OpenFrame> frames;
    thread.copy_open(frames);
    return frames;
  }

  static inline std::atomic<uint64_t> wakes{0};
  pig::PathTable paths;
  pig::DropCounters drops;
  pig::Clock clock;
  pig::StepTracker steps;
  pig::OverflowStatistics overflow{steps};
  ThreadState thread;
};

void check_span(const RawSpan& span, uint64_t begin, uint64_t duration, uint64_t child,
                uint32_t path, uint32_t depth) {
  CHECK_EQ(span.begin, begin);
  CHECK_EQ(span.duration(), duration);
  CHECK_EQ(span.child(), child);
  CHECK_EQ(span.path(), path);
  CHECK_EQ(span.depth(), depth);
}

void check_path(const Recording& recording, uint32_t path, uint32_t parent, uint32_t phase) {
  const auto paths = recording.paths.since(0);
  CHECK(path < paths.size());
  CHECK_EQ(paths[path].parent, parent);
  CHECK_EQ(paths[path].phase, phase);
}

void test_a_clock_that_goes_backwards() {
  Recording recording;
  recording.begin_at(100, kA);
  recording.end_at(90, kA);
  check_span(recording.drain().at(0), 100, 0, 0, 0, 0);
}

void test_frames_by_serial() {
  Recording recording;
  const uint32_t outer = recording.begin_at(0, kA);
  const uint32_t inner = recording.begin_at(1, kA);
  CHECK(outer != 0 && inner != 0 && outer != inner);
  recording.thread.end_frame(outer, 10);
  recording.thread.end_frame(outer, 11);  // a second time
  recording.thread.cancel_frame(inner);
  recording.thread.cancel_frame(inner);
  CHECK_EQ(recording.drops.get(Drop::kUnmatchedEnds), 2u);
  CHECK(recording.open().empty());
  const std::vector<RawSpan> spans = recording.drain();
  CHECK_EQ(spans.size(), 1u);
  check_span(spans[0], 0, 10, 0, 0, 0);
}

void test_renamed_frame() {
  Recording recording;
  recording.begin_at(0, kA);
  const uint32_t renamed = recording.begin_at(1, kA);
  recording.thread.rename_frame(renamed, kB);
  recording.thread.end_frame(renamed, 2);
  recording.thread.rename_frame(renamed, kB);  // it is gone
  recording.end_at(3, kA);
  recording.begin_at(4, kA);
  recording.begin_at(5, kB);
  recording.end_at(6, kB);
  recording.end_at(7, kA);
  const std::vector<RawSpan> spans = recording.drain();
  CHECK_EQ(spans.size(), 4u);
  CHECK_EQ(spans[0].path(), spans[2].path());
  CHECK(spans[0].path() != spans[1].path());
  CHECK_EQ(recording.drops.get(Drop::kUnmatchedEnds), 1u);
}

void test_other_threads_ask_for_an_end() {
  Recording recording;
  const uint32_t outer = recording.begin_at(0, kA);
  recording.begin_at(1, kB);
  std::thread([&recording, outer] {
    recording.thread.request_end(outer, 20);
    recording.thread.request_end(outer, 25);
  }).join();
  // The owner's next begin or end finds that the recording does not match, and looks.
  CHECK(recording.thread.epoch() != kEpoch);
  CHECK(!recording.thread.catch_up(kEpoch + 1));
  CHECK(!recording.thread.catch_up(0));
  CHECK(recording.thread.catch_up(kEpoch));
  CHECK_EQ(recording.thread.epoch(), kEpoch);
  const std::vector<RawSpan> spans = recording.drain();
  CHECK_EQ(spans.size(), 1u);
  check_span(spans[0], 0, 20, 0, 0, 0);
  CHECK_EQ(recording.drops.get(Drop::kUnmatchedEnds), 1u);
  CHECK_EQ(recording.open().size(), 1u);
}

// --- tasks ---

/// Tasks 16, 32, ... are resumed inside task 8, as an event loop does; task 24 inside 16.
constexpr uintptr_t kLoop = 8, kFirst = 16, kSecond = 32, kInFirst = 24;

Caller block_of(uintptr_t task) { return {task, task * 4096}; }

uintptr_t task_around(uintptr_t task) {
  if (task == kLoop) return 0;
  return task == kInFirst ? kFirst : kLoop;
}

uintptr_t running_task = kLoop;

void test_the_innermost_path_is_that_of_the_task_that_runs() {
  Recording recording;
  const auto path_in = [&recording](uintptr_t task) {
    running_task = task;
    return recording.thread.innermost_path();
  };
  CHECK_EQ(path_in(kFirst), pig::kNoPath);
  recording.begin_at(0, kA, block_of(kLoop));
  recording.begin_at(1, kB, block_of(kFirst));
  CHECK_EQ(path_in(kFirst), 1u);
  CHECK_EQ(path_in(kInFirst), 1u);
  CHECK_EQ(path_in(kSecond), 0u);
  CHECK_EQ(path_in(kLoop), 0u);
}

void test_a_frame_that_was_not_opened_lies_inside_or_around_one_that_was() {
  constexpr uint32_t kRoom = ThreadState::kMaxFrames - 1;
  Recording recording;
  for (uintptr_t i = 1; i <= kRoom; ++i) recording.begin_at(i, kB, block_of(16 * i));
  const Caller caller = Caller::of_call(8);
  CHECK_EQ(recording.begin_at(5000, kA, caller), 0u);
  recording.end_at(5001, kB, block_of(16));
  CHECK(recording.begin_at(5002, kA, caller) != 0);
  CHECK_EQ(recording.begin_at(5003, kA, caller), 0u);
  recording.drain();
  for (const size_t recorded : {0, 1, 0}) {
    recording.end_at(5004, kA, caller);
    CHECK_EQ(recording.drain().size(), recorded);
  }
}

void test_full_table_of_paths() {
  Recording recording;
  constexpr uint32_t kRoom = pig::PathTable::kCapacity - 1;  // one is kept for all others
  for (uint32_t phase = 0; phase < kRoom; ++phase) {
    recording.begin_at(0, phase);
    recording.end_at(1, phase);
    if (phase % 4096 == 0) recording.drain();
  }
  recording.drain();
  CHECK_EQ(recording.drops.get(Drop::kPaths), 0u);

  recording.begin_at(10, kRoom + 1);
  recording.begin_at(20, kA);
  recording.end_at(30, kA);
  recording.end_at(50, kRoom + 1);
  recording.begin_at(60, kA);  // has its path already
  recording.end_at(61, kA);
  CHECK_EQ(recording.drops.get(Drop::kPaths), 2u);
  const std::vector<RawSpan> spans = recording.drain();
  CHECK_EQ(spans.size(), 3u);
  check_span(spans[0], 20, 10, 0, kRoom, 1);
  check_span(spans[1], 10, 40, 10, kRoom, 0);
  check_span(spans[2], 60, 1, 0, kA, 0);
  CHECK_EQ(recording.paths.since(0).size(), size_t{kRoom} + 1);
  check_path(recording, kRoom, pig::kNoPath, pig::PhaseTable::kTooManyPaths);
}

struct Totals {
  uint64_t count = 0;
  uint64_t host_ns = 0;

  bool operator==(const Totals&) const = default;
};

/// Of the rows of docs/run-file.md, by path and scope.
std::map<std::pair<uint32_t, uint32_t>, Totals> totals_of(const pig::StatisticsTable& table) {
  std::vector<uint8_t> bytes;
  table.encode(bytes);
  std::map<std::pair<uint32_t, uint32_t>, Totals> totals;
  size_t at = 0;
  const auto word = [&bytes](size_t offset) {
    uint64_t value;
    std::memcpy(&value, &bytes.at(offset), sizeof value);
    return value;
  };
  while (at < bytes.size()) {
    const uint64_t head = word(at);
    at += 16;
    totals[{static_cast<uint32_t>(head), static_cast<uint32_t>(head >> 32)}] = {word(at),
                                                                                word(at + 8)};
    for (int statistic = 0; statistic < 2; ++statistic) at += 56 + 16 * word(at + 48);
  }
  return totals;
}

Totals overflow_of(Recording& recording) {
  Totals sum;
  for (const auto& [row, totals] : totals_of(recording.folded())) {
    sum.count += totals.count;
    sum.host_ns += totals.host_ns;
  }
  return sum;
}

void test_full_ring() {
  Recording recording;
  constexpr uint64_t kSpans = 3 * kRing + 100;
  for (uint64_t i = 0; i < kSpans; ++i) {
    recording.begin_at(i * 10, kA);
    recording.end_at(i * 10 + i % 7, kA);
  }
  // Nobody came to empty the ring: its owner folded it three times.
  CHECK_EQ(Recording::wakes.load(), 3u);
  CHECK_EQ(recording.drops.get(Drop::kRingFull), 3 * kRing);
  Totals expected;
  for (uint64_t i = 0; i < 3 * kRing; ++i) expected = {i + 1, expected.host_ns + i % 7};
  CHECK(overflow_of(recording) == expected);
  const std::vector<RawSpan> spans = recording.drain();
  CHECK_EQ(spans.size(), 100u);
  CHECK_EQ(spans[0].begin, 3 * kRing * 10);
}

/// Until a step has an item it may be dropped, and its spans are then outside any step.
void test_folded_spans_of_an_undecided_step() {
  const auto scope_of_folded_spans = [](auto decide) {
    Recording recording;
    const uint32_t step = *recording.steps.begin(kSerial);
    for (uint64_t i = 0; i < kRing; ++i) {
      recording.begin_at(i, kA);
      recording.end_at(i, kA);
    }
    decide(recording.steps, step);
    const auto totals = totals_of(recording.folded());
    CHECK_EQ(totals.size(), 1u);
    CHECK_EQ(totals.begin()->second.count, kRing);
    return static_cast<Scope>(totals.begin()->first.second);
  };
  using pig::StepTracker;
  CHECK(scope_of_folded_spans([](StepTracker&, uint32_t) {}) == Scope::kStep);
  CHECK(scope_of_folded_spans([](StepTracker& steps, uint32_t step) { steps.drop(step); }) ==
        Scope::kOutside);
  CHECK(scope_of_folded_spans([](StepTracker& steps, uint32_t step) { steps.end(step, true); }) ==
        Scope::kStep);
}

/// The owner records as fast as it can while another thread takes the spans away.
void test_no_span_is_lost() {
  constexpr uint64_t kPairs = 2'000'000;
  Recording recording;
  uint64_t drained_ns = 0;
  uint64_t drained = 0;
  uint64_t last_end = 0;
  std::atomic<bool> done{false};

  const auto drain = [&] {
    for (const RawSpan& span : recording.drain()) {
      CHECK(span.begin + span.duration() > last_end);  // in order, none twice
      last_end = span.begin + span.duration();
      drained_ns += span.duration();
      ++drained;
    }
  };
  std::thread harvester([&] {
    while (!done.load()) drain();
    drain();
  });

  uint64_t recorded_ns = 0;
  for (uint64_t i = 0; i < kPairs; ++i) {
    const uint64_t at = i * 10;
    recording.begin_at(at + 1, kA);
    recording.begin_at(at + 2, kB);
    recording.end_at(at + 4 + i % 3, kB);
    recording.end_at(at + 7 + i % 2, kA);
    recorded_ns += 2 + i % 3 + 6 + i % 2;
  }
  done.store(true);
  harvester.join();

  const Totals overflow = overflow_of(recording);
  CHECK_EQ(overflow.count, recording.drops.get(Drop::kRingFull));
  CHECK_EQ(drained + overflow.count, 2 * kPairs);
  CHECK_EQ(drained_ns + overflow.host_ns, recorded_ns);
}

void test_activity() {
  Recording recording;
  uint64_t seen = recording.thread.activity();
  const auto has_changed = [&] {
    return recording.thread.activity() != std::exchange(seen, recording.thread.activity());
  };
  CHECK(!has_changed());
  recording.begin_at(1, kA);
  CHECK(has_changed());
  const uint32_t frame = recording.begin_at(2, kB);
  CHECK(has_changed());
  recording.thread.rename_frame(frame, kC);
  CHECK(has_changed());
  recording.thread.cancel_frame(frame);
  CHECK(has_changed());
  recording.begin_at(3, kB);
  recording.thread.cancel_frame(recording.begin_at(4, kC));
  CHECK(has_changed());
  const uint32_t around = recording.begin_at(4, kC);
  recording.begin_at(4, kA);
  CHECK(has_changed());
  recording.thread.cancel_frame(around);
  CHECK(has_changed());
  recording.end_at(5, kA);
  CHECK(has_changed());
  recording.end_at(5, kB);
  CHECK(has_changed());
  recording.drain();
  CHECK(!has_changed());
}

/// Opens and closes frames at random under one that stays open, until told to stop. The begin of
/// each frame tells its phase and step.
class RandomOwner {
 public:
  enum class Order { kNested, kAny };

  static constexpr uint64_t kFirstBegin = kA;

  RandomOwner(Recording& recording, Order order) : recording_(recording), order_(order) {
    pig::open_step.store(0);
    recording_.begin_at(kFirstBegin, kA);
  }

  void work_until(const std::atomic<bool>& done) {
    while (!done.load(std::memory_order_relaxed))
      for (int i = 0; i < 100; ++i) step();
  }

 private:
  static constexpr int kBeginsPerRound = 5;  // bounds the depth, and so the number of paths

  void step() {
    const uint32_t choice = random_();
    if (begins_ < kBeginsPerRound && (open_.empty() || choice % 4 != 0)) {
      ++begins_;
      ++count_;
      const uint32_t phase = kA + choice / 4 % 3;
      pig::open_step.store(count_, std::memory_order_relaxed);
      open_.push_back(recording_.begin_at(uint64_t{count_} << 8 | phase, phase));
      return;
    }
    const size_t at = order_ == Order::kNested ? open_.size() - 1 : choice / 4 % open_.size();
    if (choice / 64 % 4 == 0) {
      recording_.thread.cancel_frame(open_[at]);
    } else {
      recording_.thread.end_frame(open_[at], ~uint64_t{0} >> 9);
    }
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
    if (open_.empty()) begins_ = 0;
  }

  Recording& recording_;
  Order order_;
  std::mt19937 random_{1};
  uint32_t count_ = 0;
  int begins_ = 0;  ///< of this round, which ends when all are closed
  std::vector<uint32_t> open_;
};

/// However the owner works, what is seen is a stack that stood at one moment.
void test_open_frames_of_a_working_thread(RandomOwner::Order order) {
  constexpr int kLooks = 300'000;
  Recording recording;
  RandomOwner owner(recording, order);
  std::atomic<bool> done{false};
  std::vector<pig::PathTable::Path> paths;
  std::thread observer([&] {
    std::vector<OpenFrame> frames;
    std::vector<RawSpan> spans;
    std::vector<SpanRing::Events> events;
    for (int look = 0; look < kLooks; ++look) {
      frames.clear();
      recording.thread.copy_open(frames);
      CHECK(!frames.empty());
      CHECK_EQ(frames[0].begin, RandomOwner::kFirstBegin);
      for (size_t i = 0; i < frames.size(); ++i) {
        const OpenFrame& frame = frames[i];
        if (frame.path >= paths.size()) paths = recording.paths.since(0);
        CHECK(frame.path < paths.size());
        CHECK_EQ(frame.begin & 0xFF, paths[frame.path].phase);
        CHECK_EQ(frame.begin >> 8, frame.step);
        if (i == 0) continue;
        CHECK(frame.begin > frames[i - 1].begin);
        CHECK(frame.depth > frames[i - 1].depth);
        if (order == RandomOwner::Order::kAny) continue;  // closed frames are left out
        CHECK_EQ(frame.depth, frames[i - 1].depth + 1);
        CHECK_EQ(paths[frame.path].parent, frames[i - 1].path);
      }
      if (look % 1000 == 0) {
        spans.clear();
        recording.thread.ring().drain(spans, events);
      }
    }
    done.store(true);
  });
  owner.work_until(done);
  observer.join();
}

void test_reset_forgets() {
  Recording recording;
  const uint32_t old = recording.begin_at(0, kA);
  recording.begin_at(1, kB);
  recording.end_at(2, kB);
  recording.thread.request_end(old, 3);
  recording.thread.reset({&recording.paths, &recording.drops, &recording.overflow, [] {}},
                         kEpoch + 1, kSerial + 1);
  CHECK_EQ(recording.thread.epoch(), kEpoch + 1);
  CHECK_EQ(recording.thread.serial(), kSerial + 1);
  CHECK(recording.open().empty());
  CHECK(recording.drain().empty());
  CHECK(recording.thread.catch_up(kEpoch + 1));
  CHECK_EQ(recording.drops.get(Drop::kUnmatchedEnds), 0u);
  // A frame of the last recording is not taken for one of this.
  CHECK(recording.begin_at(5, kA) != old);
}

}  // namespace

int main() {
  pig::inject_tick_function([] { return now; });
  pig::tasks = {[] { return running_task; }, task_around};
  test_a_clock_that_goes_backwards();
  test_frames_by_serial();
  test_renamed_frame();
  test_other_threads_ask_for_an_end();
  test_the_innermost_path_is_that_of_the_task_that_runs();
  test_a_frame_that_was_not_opened_lies_inside_or_around_one_that_was();
  test_full_table_of_paths();
  test_full_ring();
  test_folded_spans_of_an_undecided_step();
  test_no_span_is_lost();
  test_activity();
  test_reset_forgets();
  test_open_frames_of_a_working_thread(RandomOwner::Order::kNested);
  test_open_frames_of_a_working_thread(RandomOwner::Order::kAny);
}
