// SPDX-License-Identifier: Apache-2.0
//
// What entering and leaving a phase does below Python, in loops whose instructions are counted from
// outside (tests/hot/test_hot_path_cost.py): `test_hot_path_cost LOOP COUNT`.
// `--build` prints what the counts depend on besides the source. Run without arguments it checks
// that the loops do what they say; those on a device need the library that PYINSTRUMENT_GPU_LIBCUDA
// names.
//
// The ticks are the processor's counter wherever there is one: what is counted are the instructions
// around the reading, and the processor that valgrind plays promises nothing about its counter.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "base/ticks.h"
#include "check.h"
#include "counted.h"
#include "cuda/device_timing.h"
#include "cuda/driver.h"
#include "hot/nvtx_range.h"
#include "hot/path_table.h"
#include "hot/thread_state.h"
#include "record/span_statistics.h"
#include "record/step_tracker.h"

namespace {

constexpr uint32_t kEpoch = 1;
/// Brings about what happens once: paths, the first record of an event.
constexpr long kWarmUp = 10;
/// A longer loop would meet a ring that is half full.
constexpr long kMost = 900;
/// A boundary shares its event with the one before even when the program was stopped in between.
constexpr int64_t kHour = 3'600'000'000'000;

/// The compiler may keep nothing in registers across it.
void barrier() { asm volatile("" ::: "memory"); }

/// The default stream.
int default_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

/// A thread's state as in a recording, and no harvester.
class Recording {
 public:
  Recording() {
    clock_.start();
#if defined(__x86_64__)
    pig::tick_kind = pig::TickKind::kTsc;  // whatever the kernel here thinks of it
#endif
    steps_.reset({clock_, drops_, {}});
    overflow_.reset(clock_, drops_);
    state_->reset({&paths_, &drops_, &overflow_, [] {}}, kEpoch, /*serial=*/0);
  }

  /// Marks every boundary from now on; those closer than that share an event.
  void time_device(uint64_t share_boundaries_ns) {
    auto& timing = pig::cuda::DeviceTiming::instance();
    if (!timing.attach({default_stream}))
      check_failed(__FILE__, __LINE__, pig::cuda::driver_error());
    timing.start({std::numeric_limits<double>::infinity(), share_boundaries_ns, false}, clock_,
                 drops_, [] {});
    timing.open_gate();
    timing.step_begins();
  }

  // As enter_phase and exit_phase (csrc/python/phase_use.h), which know Python.
  void enter(uint32_t phase) {
    pig::nvtx_push(name_);
    const uint32_t epoch = pig::active_epoch.load(std::memory_order_relaxed);
    if (epoch != 0) begin(epoch, phase);
    barrier();
  }
  void leave(uint32_t phase) {
    pig::nvtx_pop(name_);
    const uint32_t epoch = pig::active_epoch.load(std::memory_order_relaxed);
    if (epoch != 0) end(epoch, phase);
    barrier();
  }

  size_t drain() {
    std::vector<pig::RawSpan> spans;
    std::vector<pig::SpanRing::Events> events;
    state_->ring().drain(spans, events);
    return spans.size();
  }

 private:
  [[gnu::noinline]] void begin(uint32_t epoch, uint32_t phase) {
    if (state_->epoch() == epoch) state_->begin(phase, caller_);
  }
  [[gnu::noinline]] void end(uint32_t epoch, uint32_t phase) {
    if (state_->epoch() == epoch) state_->end(phase, caller_, pig::read_ticks());
  }

  // As caller_here (csrc/python/caller.h) finds it in what the interpreter says.
  pig::Caller caller_ = {8, 16};
  const pig::NvtxName name_ = pig::nvtx_name("phase");
  pig::Clock clock_;
  pig::DropCounters drops_;
  pig::PathTable paths_;
  pig::StepTracker steps_;
  pig::OverflowStatistics overflow_{steps_};
  std::unique_ptr<pig::ThreadState> state_ = std::make_unique<pig::ThreadState>();
};

void empty(Recording&, long count) {
  for (long i = 0; i < count; ++i) {
    barrier();
    barrier();
  }
}

void nvtx(Recording&, long count) {
  const pig::NvtxName name = pig::nvtx_name("phase");
  for (long i = 0; i < count; ++i) {
    pig::nvtx_push(name);
    barrier();
    pig::nvtx_pop(name);
    barrier();
  }
}

void flat(Recording& recording, long count) {
  for (long i = 0; i < count; ++i) {
    recording.enter(0);
    recording.leave(0);
  }
}

void nested(Recording& recording, long count) {
  for (long i = 0; i < count; ++i) {
    for (uint32_t phase = 0; phase < 3; ++phase) recording.enter(phase);
    for (uint32_t phase = 3; phase-- > 0;) recording.leave(phase);
  }
}

struct Loop {
  const char* name;
  void (*run)(Recording&, long count);
  bool records;
  int64_t share_boundaries_ns;  ///< -1: nothing is marked on a device
  size_t spans;                 ///< that one round records
};

constexpr Loop kLoops[] = {
    {"empty", empty, true, -1, 0},           {"nvtx", nvtx, true, -1, 0},
    {"not_recording", flat, false, -1, 0},   {"recording", flat, true, -1, 1},
    {"nested", nested, true, -1, 3},         {"device", flat, true, 0, 1},
    {"device_shared", flat, true, kHour, 1},
};

void run(const Loop& loop, Recording& recording, long count) {
  if (loop.share_boundaries_ns >= 0) recording.time_device(loop.share_boundaries_ns);
  pig::active_epoch = loop.records ? kEpoch : 0;
  loop.run(recording, kWarmUp);
  counted([&] { loop.run(recording, count); });
  pig::active_epoch = 0;
  if (loop.share_boundaries_ns >= 0) pig::cuda::DeviceTiming::instance().finish();
}

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif
#if defined(__x86_64__)
constexpr const char* kArchitecture = "x86_64";
#elif defined(__aarch64__)
constexpr const char* kArchitecture = "aarch64";
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--build") == 0) {
    std::printf("%s, %s, %s\n", kCompiler, kArchitecture, PIG_BUILD);
    return 0;
  }
  unsetenv("NVTX_INJECTION64_PATH");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  pig::start_nvtx([] { return std::string(); });
  CHECK(!pig::nvtx_attached);
  if (argc != 3) {
    for (const Loop& loop : kLoops) {
      if (loop.share_boundaries_ns >= 0 && std::getenv("PYINSTRUMENT_GPU_LIBCUDA") == nullptr)
        continue;
      Recording recording;
      run(loop, recording, kMost);
      CHECK_EQ(recording.drain(), loop.spans * (kMost + kWarmUp));
    }
    return 0;
  }
  const long count = std::atol(argv[2]);
  CHECK(0 <= count && count <= kMost);
  for (const Loop& loop : kLoops)
    if (std::strcmp(loop.name, argv[1]) == 0) {
      Recording recording;
      run(loop, recording, count);
      return 0;
    }
  check_failed(__FILE__, __LINE__, std::string("there is no loop ") + argv[1]);
}
