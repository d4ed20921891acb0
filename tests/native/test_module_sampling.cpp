// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "base/clock.h"
#include "base/ticks.h"
#include "check.h"
#include "hot/active_recording.h"
#include "record/module_sampling.h"

namespace {

using pig::ModuleSampling;

uint64_t now = 1;

/// A step in which modules cost something, if they are timed. Returns for how many it stands.
uint32_t step(uint64_t number, uint64_t ticks, uint64_t cost) {
  ModuleSampling& sampling = ModuleSampling::instance();
  pig::open_step.store(number);
  const uint32_t weight = sampling.step_begins(number) >> ModuleSampling::kWeightShift;
  CHECK_EQ(sampling.is_skipped_step(), weight == 0);
  if (weight != 0) sampling.add_cost(cost);
  now += ticks;
  pig::open_step.store(pig::kNoOpenStep);
  CHECK(!sampling.is_skipped_step());
  sampling.step_ends();
  return weight;
}

void test_the_cost_stays_within_the_budget() {
  ModuleSampling& sampling = ModuleSampling::instance();
  sampling.set_watched(true);
  sampling.choose(0);
  for (uint64_t i = 0; i < 3; ++i) CHECK_EQ(step(i, 1'000'000, 19'000), 1u);
  // 1.9 % of a step, almost ten times what may be.
  for (uint64_t block = 0; block < 20; ++block) {
    uint32_t timed = 0;
    for (uint64_t i = 0; i < 10; ++i)
      if (const uint32_t weight = step(3 + 10 * block + i, 1'000'000, 19'000)) {
        CHECK_EQ(weight, 10u);
        ++timed;
      }
    CHECK_EQ(timed, 1u);
  }
}

}  // namespace

int main() {
  pig::inject_tick_function([] { return now; });
  pig::Clock().start();  // from now on it is asked
  pig::active_epoch.store(1);
  test_the_cost_stays_within_the_budget();
  pig::active_epoch.store(0);
  pig::inject_tick_function(nullptr);
}
