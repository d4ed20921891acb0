// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "check.h"
#include "record/usual_growth.h"

namespace {

constexpr int64_t kMs = 1'000'000;

void what_steps_and_gaps_usually_add_is_not_the_long_steps() {
  pig::UsualGrowth faults;
  CHECK_EQ(faults.before_step({7, 0}), 0);
  for (int64_t growth : {3, 2, 900, 3, -1}) faults.add_step(growth);
  CHECK_EQ(faults.before_step({2, 0}), 2 * 3);
  faults.add_gaps(2 * 3 + 3 * 5, {2, 0});
  CHECK_EQ(faults.before_step({2, 0}), 2 * 3 + 3 * 5);
  CHECK_EQ(faults.before_step({}), 5);
  // Steps that had less than usual leave nothing to the gaps.
  for (int i = 0; i < 2; ++i) faults.add_gaps(1, {2, 0});
  CHECK_EQ(faults.before_step({2, 0}), 2 * 3);
}

void counters_say_nothing_behind_a_longer_gap_than_usual() {
  pig::UsualGaps gaps;
  CHECK(gaps.tell_of({0, kMs}, 20 * kMs));
  CHECK(!gaps.tell_of({0, kMs + 1}, 20 * kMs));
  for (int i = 0; i < 3; ++i) gaps.add({3, 8 * kMs});  // 2 ms before each step
  CHECK(gaps.tell_of({1, 8 * kMs}, kMs));
  CHECK(!gaps.tell_of({1, 8 * kMs + 1}, kMs));
  CHECK(!gaps.tell_of({1, 0, /*has_long=*/true}, kMs));
  CHECK(!gaps.is_rare(20 * kMs));
  CHECK(gaps.is_rare(20 * kMs + 1));
  for (int i = 0; i < 9; ++i) gaps.add({0, 15 * kMs});
  CHECK(!gaps.is_rare(30 * kMs));
  CHECK(gaps.is_rare(30 * kMs + 1));
}

}  // namespace

int main() {
  what_steps_and_gaps_usually_add_is_not_the_long_steps();
  counters_say_nothing_behind_a_longer_gap_than_usual();
}
