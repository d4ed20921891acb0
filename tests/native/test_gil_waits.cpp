// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "drained_part.h"
#include "hot/active_recording.h"
#include "record/gil_waits.h"

namespace {

using pig::CauseItem;
using pig::CauseKind;
using pig::GilWaits;
using pig::kNoStep;
using pig::Seen;
using pig::StepAtWork;
using pig::ThreadTimes;

constexpr uint32_t kMain = 100, kHolder = 101, kOther = 102;
constexpr int64_t kMs = 1'000'000;
constexpr Seen kWaits = Seen::waiting_for_gil;

/// Looks, and threads that run as they are told.
struct Looks {
  DrainedPart<pig::CauseLog> log;
  ThreadTimes times;
  GilWaits waits{log.part, [this](ThreadTimes& now) { now = times; }};

  Looks() {
    pig::active_epoch.store(1);
    times.threads = {{{kMain, 50 * kMs}, {kHolder, 7 * kMs}, {kOther, 9 * kMs}}};
    times.count = 3;
  }
  std::vector<CauseItem> end(int64_t end_ns) {
    waits.step_ends(end_ns);
    return log.take<CauseItem>();
  }
};

void check_wait(const CauseItem& item, int64_t begin_ns, int64_t end_ns, uint32_t holder) {
  CHECK(item.kind == CauseKind::kGilWait);
  CHECK_EQ(item.begin_ns, begin_ns);
  CHECK_EQ(item.begin_ns + item.time_ns, end_ns);
  CHECK_EQ(item.step, kNoStep);
  CHECK_EQ(item.thread, kMain);
  CHECK_EQ(item.note, holder);
}

void check_looked_at(const CauseItem& item, uint32_t step) {
  CHECK(item.kind == CauseKind::kGilWait);
  CHECK_EQ(item.step, step);
  CHECK_EQ(item.time_ns, 0);
}

void a_wait_that_goes_on_at_the_first_look_began_when_the_thread_ran_no_more() {
  Looks looks;
  // It has run 6 ms of 40, and usually does not run for 1 ms.
  const StepAtWork step{4, kMain, 100 * kMs, 50 * kMs, 1 * kMs};
  looks.waits.look(step, 140 * kMs, kWaits, 56 * kMs);
  looks.waits.look(step, 150 * kMs, kWaits, 56 * kMs);
  looks.times.threads[1].ran_ns += 18 * kMs;
  looks.waits.look(step, 160 * kMs, Seen::elsewhere, 56 * kMs);
  looks.waits.look(step, 170 * kMs, Seen::elsewhere, 66 * kMs);
  const std::vector<CauseItem> items = looks.end(171 * kMs);
  CHECK_EQ(items.size(), 2u);
  check_wait(items[0], 107 * kMs, 155 * kMs, kHolder);
  check_looked_at(items[1], 4);
  CHECK(!looks.waits.is_looking());
}

void later_ones_begin_and_end_between_two_looks_or_with_the_step() {
  Looks looks;
  const StepAtWork step{4, kMain, 100 * kMs, 50 * kMs, 0};
  looks.waits.look(step, 110 * kMs, Seen::elsewhere, 60 * kMs);
  looks.waits.look(step, 112 * kMs, kWaits, 61 * kMs);
  looks.times.threads[1].ran_ns += kMs / 20;  // nobody ran to speak of
  looks.waits.look(step, 114 * kMs, Seen::elsewhere, 62 * kMs);
  looks.waits.look(step, 116 * kMs, kWaits, 63 * kMs);
  looks.times.threads[2].ran_ns += 4 * kMs;
  const std::vector<CauseItem> items = looks.end(121 * kMs);
  CHECK_EQ(items.size(), 3u);
  check_wait(items[0], 111 * kMs, 113 * kMs, 0);
  check_wait(items[1], 115 * kMs, 121 * kMs, kOther);
  check_looked_at(items[2], 4);
}

void where_it_is_not_known_what_the_thread_ran_the_first_begins_in_the_middle() {
  Looks looks;
  looks.waits.look({4, kMain, 100 * kMs, -1, 0}, 120 * kMs, kWaits, 61 * kMs);
  check_wait(looks.end(130 * kMs)[0], 110 * kMs, 130 * kMs, 0);
  looks.waits.look({5, kMain, 140 * kMs, -1, 0}, 150 * kMs, Seen::elsewhere, 70 * kMs);
  const std::vector<CauseItem> items = looks.end(160 * kMs);
  CHECK_EQ(items.size(), 1u);
  check_looked_at(items[0], 5);
}

void a_wait_goes_on_where_the_thread_is_ready_and_hardly_runs() {
  Looks looks;
  const StepAtWork step{4, kMain, 100 * kMs, 50 * kMs, 0};
  looks.waits.look(step, 110 * kMs, Seen::ready, 60 * kMs);
  looks.waits.look(step, 112 * kMs, kWaits, 61 * kMs);
  looks.waits.look(step, 116 * kMs, Seen::ready, 61 * kMs + kMs / 10);  // it asks for the GIL
  looks.waits.look(step, 120 * kMs, kWaits, 61 * kMs + kMs / 10);
  looks.waits.look(step, 124 * kMs, Seen::ready, 63 * kMs);  // it has it
  const std::vector<CauseItem> items = looks.end(130 * kMs);
  CHECK_EQ(items.size(), 2u);
  check_wait(items[0], 111 * kMs, 122 * kMs, 0);
}

void a_thread_that_sleeps_is_told_from_one_that_does_not() {
  const std::string futex = std::to_string(SYS_futex);
  CHECK_EQ(pig::sleeping_address((futex + " 0x7f00 0x189 0x0 0x0").c_str()), 0x7f00u);
  CHECK_EQ(pig::sleeping_address("running\n"), 0u);
  CHECK_EQ(pig::sleeping_address("-1 0x7ffe 0x55\n"), 0u);
  CHECK_EQ(pig::sleeping_address("0 0x3 0x7f00\n"), 0u);
  CHECK_EQ(pig::sleeping_address(""), 0u);
  CHECK(pig::is_near(0x7f04, 0x7f00));
  CHECK(pig::is_near(0x7f00, 0x7f08));
  CHECK(!pig::is_near(0x7f00, 0x7f10));
  CHECK(!pig::is_near(0, 0));
}

}  // namespace

int main() {
  a_wait_that_goes_on_at_the_first_look_began_when_the_thread_ran_no_more();
  later_ones_begin_and_end_between_two_looks_or_with_the_step();
  where_it_is_not_known_what_the_thread_ran_the_first_begins_in_the_middle();
  a_wait_goes_on_where_the_thread_is_ready_and_hardly_runs();
  a_thread_that_sleeps_is_told_from_one_that_does_not();
}
