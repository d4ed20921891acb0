// SPDX-License-Identifier: Apache-2.0
//
// When the watchdog notices that nothing happens any more, on a clock that the test moves.
#include <cstdint>
#include <string>

#include "check.h"
#include "record/stalls.h"

namespace {

using pig::StallLog;
using pig::Watchdog;
using Change = Watchdog::Change;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kLimitNs = 30 * kSecondNs;

/// A program that is looked at once a second.
struct Program {
  Watchdog watchdog;
  Watchdog::Progress progress{20, 0, 0, true};
  Watchdog::StepTimes times{10, kSecondNs / 10};
  int64_t now_s = 0;
  int64_t asked = 0;

  explicit Program(int64_t limit_ns = kLimitNs) { watchdog.reset(limit_ns); }

  Change look() {
    return watchdog.look(now_s * kSecondNs, progress, [this] {
      ++asked;
      return times;
    });
  }
  /// Nothing happens; the second in which that was noticed, or -1.
  int64_t wait(int64_t seconds, Change change = Change::kBegan) {
    for (const int64_t end_s = now_s + seconds; now_s < end_s;) {
      ++now_s;
      if (look() == change) return now_s;
    }
    return -1;
  }
  Change step() {
    ++now_s;
    ++progress.changes;
    return look();
  }
};

void it_is_noticed_at_the_limit_and_once() {
  Program program;
  CHECK(program.step() == Change::kNone);
  CHECK_EQ(program.wait(100), 31);
  CHECK_EQ(program.watchdog.stall().since_ns, 1 * kSecondNs);
  CHECK_EQ(program.watchdog.stall().noticed_ns, 31 * kSecondNs);
  CHECK_EQ(program.watchdog.stall().limit_ns, kLimitNs);
  CHECK_EQ(program.watchdog.stall().usual_ns, kSecondNs / 10);
  CHECK_EQ(program.wait(100), -1);
  CHECK(program.step() == Change::kEnded);
  CHECK(program.step() == Change::kNone);
}

void step_times_are_asked_for_at_the_limit_only() {
  Program program;
  for (int second = 0; second < 100; ++second) {
    program.step();
    program.wait(1);
  }
  CHECK_EQ(program.asked, 0);
}

void it_is_off_without_a_limit() {
  Program program(0);
  program.step();
  CHECK_EQ(program.wait(1000), -1);
}

void until_ten_steps_have_ended_it_waits_three_times_as_long() {
  Program program;
  program.times = {0, 0};
  CHECK_EQ(program.wait(100), 91);  // no step had begun
  CHECK_EQ(program.watchdog.stall().since_ns, 1 * kSecondNs);
  CHECK_EQ(program.watchdog.stall().usual_ns, 0);
  // How long the first steps take says nothing of that.
  program.times = {9, 20 * kSecondNs};
  CHECK(program.step() == Change::kEnded);
  program.progress.in_step = false;
  program.step();
  const int64_t began_s = program.now_s;
  CHECK_EQ(program.wait(100), began_s + 90);
}

void long_steps_have_a_longer_limit() {
  Program program;
  program.times.usual_ns = 12 * kSecondNs;
  program.step();
  CHECK_EQ(program.wait(119), -1);
  CHECK_EQ(program.wait(10), 121);
  CHECK_EQ(program.watchdog.stall().limit_ns, 120 * kSecondNs);
}

void time_in_which_nobody_looks_does_not_count() {
  Program program;
  program.step();
  program.wait(10);
  program.now_s += 3600;  // the process was stopped
  CHECK(program.look() != Change::kBegan);
  CHECK_EQ(program.wait(14), -1);
  CHECK_EQ(program.wait(1), program.now_s);
}

void what_ended_by_itself_may_last_twice_as_long() {
  Program program;
  program.step();
  CHECK_EQ(program.wait(40), 31);
  program.wait(19);
  CHECK(program.step() == Change::kEnded);  // after 50 seconds
  const int64_t began_s = program.now_s;
  CHECK_EQ(program.wait(1000), began_s + 2 * 49);
  // Between steps that says nothing.
  program.progress.in_step = false;
  CHECK(program.step() == Change::kEnded);
  const int64_t ended_s = program.now_s;
  CHECK_EQ(program.wait(1000), ended_s + 30);
}

void whatever_the_program_does_is_progress() {
  Program program;
  for (const bool in_step : {true, false}) {
    program.progress.in_step = in_step;
    program.step();
    for (int i = 0; i < 100; ++i) {
      ++program.progress.changes;
      CHECK_EQ(program.wait(1), -1);
    }
    CHECK_EQ(program.watchdog.active_ns(), program.now_s * kSecondNs);
  }
}

void a_busy_process_may_take_ten_times_as_long() {
  Program program;
  program.step();  // at 1 s
  for (int64_t s = 0; s < 299; ++s) {
    program.progress.cpu_ns += kSecondNs / 9;
    CHECK_EQ(program.wait(1), -1);
    CHECK_EQ(program.watchdog.active_ns(), program.now_s * kSecondNs);
  }
  program.progress.cpu_ns += kSecondNs;
  CHECK_EQ(program.wait(1), 301);
  CHECK_EQ(program.watchdog.stall().since_ns, 1 * kSecondNs);
  // A little is what waiting takes.
  CHECK(program.step() == Change::kEnded);
  program.progress.in_step = false;
  program.step();
  const int64_t began_s = program.now_s;
  for (int64_t s = 0; s < 29; ++s) {
    program.progress.cpu_ns += kSecondNs / 11;
    CHECK_EQ(program.wait(1), -1);
  }
  CHECK_EQ(program.wait(1), program.now_s);
  CHECK_EQ(program.watchdog.active_ns(), began_s * kSecondNs);
}

void a_stall_that_is_withdrawn_begins_anew() {
  Program program;
  program.step();
  CHECK_EQ(program.wait(100), 31);
  program.watchdog.withdraw();
  CHECK_EQ(program.watchdog.active_ns(), 31 * kSecondNs);
  // It was none, so that it says nothing of how long pauses last here.
  CHECK_EQ(program.wait(100), 61);
  CHECK_EQ(program.watchdog.stall().since_ns, 31 * kSecondNs);
}

void a_collective_counts_from_when_it_was_created() {
  Program program;
  program.step();  // at 1 s
  program.wait(20);
  program.progress.collective_ns = 15 * kSecondNs;  // noticed at 22 s
  CHECK_EQ(program.wait(100), 45);
  CHECK_EQ(program.watchdog.stall().since_ns, 15 * kSecondNs);
  // The last one before it stood still is seen after that was noticed: no end.
  program.progress.collective_ns = 16 * kSecondNs;
  CHECK_EQ(program.wait(3, Change::kEnded), -1);
  program.progress.collective_ns = 47 * kSecondNs;
  CHECK_EQ(program.wait(3, Change::kEnded), 49);
}

void stalls_become_a_document() {
  std::string document;
  StallLog log([&](std::string json) { document = std::move(json); });
  CHECK(!log.newest());
  const Watchdog::Stall stall{1, 40, 30, 2};
  log.begin(stall, {7, {{0, 3}, {2, 1}}}, "it stands");
  log.wait_no_longer(39 + StallLog::kPatienceNs);
  CHECK_EQ(document, "");  // it may still turn out to be none
  log.wait_no_longer(40 + StallLog::kPatienceNs);
  CHECK_EQ(document,
           "{\"stalls\":[{\"since_ns\":1,\"noticed_ns\":40,\"limit_ns\":30,\"ended_ns\":null,"
           "\"step\":7,\"paths\":[[0,3],[2,1]],\"answer\":null,\"traceback\":null}]}");
  const auto [number, sentence] = *log.newest();
  CHECK_EQ(sentence, "it stands");
  CHECK(log.may_be_said(number));
  CHECK(!log.may_be_said(number));
  CHECK(log.answer(number, "{\"stacks\":[]}"));
  CHECK_EQ(document,
           "{\"stalls\":[{\"since_ns\":1,\"noticed_ns\":40,\"limit_ns\":30,\"ended_ns\":null,"
           "\"step\":7,\"paths\":[[0,3],[2,1]],\"answer\":{\"stacks\":[]},\"traceback\":null}]}");
  log.end(50);
  CHECK(document.find("\"ended_ns\":50") != std::string::npos);
  CHECK(log.add_traceback(number, "a \"b\"\\\n\x01\xFF"));
  CHECK(document.find("\"traceback\":\"a \\\"b\\\"\\\\\\n??\"") != std::string::npos);
  CHECK(!log.answer(number + 1, "{}"));
  for (size_t i = 0; i < StallLog::kMost; ++i) log.begin(stall, {-1, {}}, "again");
  CHECK(!log.answer(number, "{}"));
  CHECK(!log.may_be_said(number));
  const uint64_t newest = log.newest()->first;
  log.withdraw(newest - StallLog::kMost);  // it is gone
  CHECK(!log.was_withdrawn());
  log.withdraw(newest);
  CHECK_EQ(log.newest()->first, newest - 1);
  CHECK(log.was_withdrawn());
  CHECK(!log.was_withdrawn());
  log.reset();
  CHECK(!log.newest());
}

}  // namespace

int main() {
  it_is_noticed_at_the_limit_and_once();
  step_times_are_asked_for_at_the_limit_only();
  it_is_off_without_a_limit();
  until_ten_steps_have_ended_it_waits_three_times_as_long();
  long_steps_have_a_longer_limit();
  time_in_which_nobody_looks_does_not_count();
  what_ended_by_itself_may_last_twice_as_long();
  whatever_the_program_does_is_progress();
  a_busy_process_may_take_ten_times_as_long();
  a_stall_that_is_withdrawn_begins_anew();
  a_collective_counts_from_when_it_was_created();
  stalls_become_a_document();
}
