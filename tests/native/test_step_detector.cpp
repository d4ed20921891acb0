// SPDX-License-Identifier: Apache-2.0
//
// That the step detector allocates nothing in a loop whose steps are alike. Where it places steps
// is in tests/auto/test_step_detector.py.
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "check.h"
#include "record/step_detector.h"

namespace {

uint64_t allocations = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr uint64_t kLoaders = 3;
constexpr uint64_t kOptimizers = 500;

class CountingPort : public pig::StepPort {
 public:
  uint64_t items = 0;
  uint64_t ended = 0;

  int64_t step_begin() override { return 1; }
  void step_item(int64_t, double) override { ++items; }
  void step_note_update(int64_t) override {}
  void step_end(int64_t, bool, pig::StepEnd) override {}
  void no_step_follows() override {}
  void step_drop(int64_t) override {}
  size_t optimizer_count() override { return kOptimizers; }
  void step_has_ended() override { ++ended; }
};

/// Items are fetched ahead, and the optimizers step within the backward pass.
void run_step(pig::StepDetector& detector) {
  for (uint64_t loader = 1; loader <= kLoaders; ++loader) {
    detector.asks_for_item(loader, true);
    detector.got_item(static_cast<double>(loader));
  }
  detector.clears_gradients();
  detector.runs_forward();
  detector.runs_backward();
  for (uint64_t optimizer = kOptimizers; optimizer > 0; --optimizer)
    detector.has_stepped(optimizer);
  detector.ends_backward(true);
}

void test_steps_like_those_before_allocate_nothing() {
  CountingPort port;
  pig::StepDetector detector(port, static_cast<uint64_t>(pthread_self()));
  run_step(detector);
  run_step(detector);
  CHECK(allocations > 0);  // they are counted

  const uint64_t before = allocations;
  for (int step = 2; step < 1000; ++step) run_step(detector);
  CHECK_EQ(allocations, before);
  CHECK_EQ(port.ended, uint64_t{999});
  CHECK_EQ(port.items, 1000 * kLoaders);
}

}  // namespace

int main() { test_steps_like_those_before_allocate_nothing(); }
