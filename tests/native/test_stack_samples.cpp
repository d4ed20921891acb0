// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "check.h"
#include "record/stack_samples.h"

namespace {

using pig::kNoPath;
using pig::SamplePace;
using pig::Scope;
using pig::StackSamples;

constexpr int64_t kMs = 1'000'000;

void add(StackSamples& samples, uint32_t path, std::vector<uint32_t> innermost_first,
         int64_t now_ns) {
  samples.add(Scope::kStep, path, innermost_first, now_ns);
}

void check_node(const StackSamples& samples, size_t number, uint32_t parent, uint32_t place,
                uint32_t count, int64_t time_ns) {
  const StackSamples::Node& node = samples.nodes()[number];
  CHECK_EQ(node.parent, parent);
  CHECK_EQ(node.place, place);
  CHECK_EQ(node.samples, count);
  CHECK_EQ(node.time_ns, time_ns);
}

void a_sample_stands_for_the_time_since_the_one_before() {
  StackSamples samples;
  samples.begin(5 * kMs);
  add(samples, 7, {2, 1}, 15 * kMs);
  add(samples, 7, {2, 1}, 45 * kMs);  // it came late
  add(samples, 7, {1}, 46 * kMs);
  add(samples, kNoPath, {2, 1}, 50 * kMs);
  CHECK_EQ(samples.nodes().size(), 6u);
  check_node(samples, 0, StackSamples::kScopes, 7, 0, 0);
  check_node(samples, 1, 0, 1, 1, kMs);
  check_node(samples, 2, 1, 2, 2, 40 * kMs);
  check_node(samples, 3, StackSamples::kScopes, kNoPath, 0, 0);
  check_node(samples, 5, 4, 2, 1, 4 * kMs);
  CHECK_EQ(samples.until_ns(), 50 * kMs);
}

void what_has_no_room_is_its_phases_own_and_then_lost() {
  StackSamples samples;
  samples.begin(0);
  int64_t now_ns = 0;
  // Each has a phase of its own, and two lines.
  while (samples.nodes().size() + 3 <= StackSamples::kMostNodes)
    add(samples, static_cast<uint32_t>(samples.nodes().size()), {2, 1}, ++now_ns);
  add(samples, 0, {1, 2, 3, 4, 5}, now_ns + 10);  // a part of it may have room
  CHECK_EQ(samples.nodes().size(), StackSamples::kMostNodes);
  check_node(samples, 0, StackSamples::kScopes, 0, 1, 10);
  add(samples, kNoPath, {1}, now_ns + 30);
  CHECK_EQ(samples.lost_ns(), 20);
  CHECK_EQ(samples.until_ns(), now_ns + 30);
}

void it_is_looked_at_once_an_interval_at_most() {
  SamplePace pace(0, 400);
  int64_t now_ns = 0;
  bool differs = false;
  for (int64_t before_ns = 0; now_ns < 1000 * kMs;) {
    const int64_t interval_ns = pace.due_ns(0) - now_ns;
    CHECK(interval_ns >= SamplePace::kIntervalNs);
    CHECK(interval_ns <= SamplePace::kIntervalNs + SamplePace::kJitterNs);
    differs |= before_ns != 0 && before_ns != interval_ns;
    before_ns = interval_ns;
    pace.looked(now_ns += interval_ns, 0);
  }
  CHECK(differs);
}

void looks_that_cost_more_are_farther_apart() {
  SamplePace pace(0, 400);
  const auto interval_ns = [&pace](int64_t now_ns, int64_t own_ns) {
    pace.looked(now_ns, own_ns);
    return pace.due_ns(0) - now_ns;
  };
  const auto is_about = [](int64_t found_ns, int64_t expected_ns) {
    return found_ns >= expected_ns && found_ns <= expected_ns + SamplePace::kJitterNs;
  };
  CHECK(is_about(interval_ns(20 * kMs, kMs / 40), SamplePace::kIntervalNs));
  CHECK(is_about(interval_ns(40 * kMs, kMs / 5), 40 * kMs));  // 100 us each
  CHECK(is_about(interval_ns(80 * kMs, 300 * kMs), SamplePace::kLongestIntervalNs));
  // Nobody rested for the sake of that: a sample stands for all of a longer interval.
  CHECK_EQ(pace.rested_until_ns(0), 0);
}

void it_stops_the_thread_for_a_thousandth_of_the_time() {
  SamplePace pace(100, 400);
  pace.looked(100 + 20 * kMs, 0);
  const int64_t due_ns = pace.due_ns(0);
  CHECK_EQ(pace.due_ns(kMs / 1000), due_ns);
  CHECK_EQ(pace.due_ns(kMs), 100 + 1000 * kMs);
  CHECK_EQ(pace.rested_until_ns(kMs / 1000), 0);
  CHECK_EQ(pace.rested_until_ns(kMs), pace.due_ns(kMs) - SamplePace::kIntervalNs);
}

void the_steps_of_a_short_run_are_looked_at_whatever_its_start_has_cost() {
  SamplePace pace(0, 400);
  for (int look = 1; look <= 5; ++look) pace.looked(look * 1000 * kMs, look * 50 * kMs);
  int64_t now_ns = 5100 * kMs, own_ns = 250 * kMs;
  const int64_t stopped_ns = 60 * kMs;
  CHECK(pace.due_ns(stopped_ns) > 2 * now_ns);
  pace.steps_begin(now_ns, stopped_ns, own_ns);
  CHECK_EQ(pace.rested_until_ns(stopped_ns), now_ns);  // what was before is no step's
  for (uint64_t look = 0; look < SamplePace::kAhead; ++look) {
    const int64_t interval_ns = pace.due_ns(stopped_ns + kMs / 2) - now_ns;
    CHECK(interval_ns <= SamplePace::kIntervalNs + SamplePace::kJitterNs);
    pace.looked(now_ns += interval_ns, own_ns += kMs / 5);
    CHECK_EQ(pace.rested_until_ns(stopped_ns), 0);
  }
  // From then on both limits hold, of what the steps have cost.
  pace.looked(now_ns, own_ns);
  CHECK(pace.due_ns(stopped_ns) - now_ns > 70 * kMs);
  CHECK_EQ(pace.due_ns(stopped_ns + 21 * kMs), (5100 + 20'000) * kMs);
}

void no_sample_stands_for_the_time_in_which_none_was_wanted() {
  StackSamples samples;
  samples.begin(0);
  add(samples, 7, {1}, 10 * kMs);
  samples.rest(900 * kMs);
  add(samples, 7, {1}, 910 * kMs);
  samples.rest(800 * kMs);
  add(samples, 7, {1}, 915 * kMs);
  check_node(samples, 1, 0, 1, 3, 25 * kMs);
  CHECK_EQ(samples.rested_ns(), 890 * kMs);
}

}  // namespace

int main() {
  a_sample_stands_for_the_time_since_the_one_before();
  what_has_no_room_is_its_phases_own_and_then_lost();
  it_is_looked_at_once_an_interval_at_most();
  looks_that_cost_more_are_farther_apart();
  it_stops_the_thread_for_a_thousandth_of_the_time();
  the_steps_of_a_short_run_are_looked_at_whatever_its_start_has_cost();
  no_sample_stands_for_the_time_in_which_none_was_wanted();
}
