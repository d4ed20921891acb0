// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver as the core loads it, and under several threads at once: what
// ThreadSanitizer should see.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "check.h"
#include "cuda/driver.h"
#include "simulated_control.h"

namespace {

using pig::cuda::Context;
using pig::cuda::Driver;
using pig::cuda::Event;
using pig::cuda::kNotReady;
using pig::cuda::kSuccess;
using pig::cuda::Stream;

sim::Control control;

void test_the_table_is_complete(const Driver& driver) {
#define CHECK_THERE(name, parameters) CHECK(driver.name != nullptr);
  PIG_CUDA_TIMING_FUNCTIONS(CHECK_THERE)
  PIG_CUDA_KERNEL_FUNCTIONS(CHECK_THERE)
#undef CHECK_THERE
  CHECK_EQ(driver.describe(700),
           std::string("CUDA_ERROR_ILLEGAL_ADDRESS (700): illegal memory access"));
  CHECK_EQ(driver.describe(4711), std::string("error (4711)"));
}

/// Times kernels of known durations on a stream of its own, while others move the clock as well.
void time_kernels(const Driver& driver, Context context, int64_t duration_ns) {
  CHECK_EQ(driver.CtxSetCurrent(context), kSuccess);
  Stream stream = nullptr;
  CHECK_EQ(driver.StreamCreate(&stream, pig::cuda::kStreamNonBlocking), kSuccess);
  Event begin = nullptr, end = nullptr;
  CHECK_EQ(driver.EventCreate(&begin, pig::cuda::kEventDefault), kSuccess);
  CHECK_EQ(driver.EventCreate(&end, pig::cuda::kEventDefault), kSuccess);
  for (int i = 0; i < 500; ++i) {
    const auto number = reinterpret_cast<uint64_t>(stream);
    // Held back, so that all three are in the queue before the first takes place.
    CHECK_EQ(control.hang(number), kSuccess);
    CHECK_EQ(driver.EventRecord(begin, stream), kSuccess);
    CHECK_EQ(control.launch(number, duration_ns), kSuccess);
    CHECK_EQ(driver.EventRecord(end, stream), kSuccess);
    CHECK_EQ(driver.EventQuery(begin), kNotReady);
    CHECK_EQ(control.release(number), kSuccess);
    while (driver.EventQuery(end) == kNotReady) control.advance(duration_ns / 3);
    float milliseconds = 0;
    CHECK_EQ(driver.EventElapsedTime(&milliseconds, begin, end), kSuccess);
    CHECK_EQ(milliseconds, static_cast<float>(duration_ns) / 1e6f);
  }
}

void test_threads(const Driver& driver) {
  control.reset(1);
  CHECK_EQ(control.set_tick(0, 1), kSuccess);
  uint64_t context = 0;
  CHECK_EQ(control.activate(0, &context), kSuccess);
  std::vector<std::thread> threads;
  for (int64_t i = 1; i <= 4; ++i)
    threads.emplace_back([&driver, context, i] {
      time_kernels(driver, reinterpret_cast<Context>(context), i * 1024);
    });
  for (int i = 0; i < 1000; ++i) control.host_ns();
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(control.record_count(), 4u * 500 * 2);
  uint64_t records = 0;
  CHECK_EQ(control.count("cuEventRecord", 0, /*any_result=*/1, &records), 0);
  CHECK_EQ(records, 4u * 500 * 2);
}

/// Two streams that are always full, each with two threads that are stuck most of the time, behind
/// each other's lock too. Only this thread moves the clock.
void test_threads_that_are_stuck(const Driver& driver) {
  constexpr int kRecords = 500;
  control.reset(1);
  control.set_driver_lock(1);
  CHECK_EQ(control.set_queue_depth(0, 2), kSuccess);
  uint64_t context = 0;
  CHECK_EQ(control.activate(0, &context), kSuccess);
  uint64_t streams[2] = {};
  for (uint64_t& stream : streams)
    CHECK_EQ(control.create_stream(context, pig::cuda::kStreamNonBlocking, &stream), kSuccess);
  std::atomic<int> working{4};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, stream = streams[i % 2]] {
      CHECK_EQ(driver.CtxSetCurrent(reinterpret_cast<Context>(context)), kSuccess);
      Event event = nullptr;
      CHECK_EQ(driver.EventCreate(&event, pig::cuda::kEventDefault), kSuccess);
      for (int record = 0; record < kRecords; ++record) {
        CHECK_EQ(control.launch(stream, 100), kSuccess);
        CHECK_EQ(driver.EventRecord(event, reinterpret_cast<Stream>(stream)), kSuccess);
      }
      --working;
    });
  while (working != 0) control.advance(10);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(control.blocked_calls(), 0u);
  CHECK_EQ(control.violation_count(), 0u);
  CHECK_EQ(control.record_count(), 4u * kRecords);
}

void test_a_reset_frees_many(const Driver& driver) {
  control.reset(1);
  CHECK_EQ(control.set_queue_depth(0, 1), kSuccess);
  uint64_t context = 0, stream = 0;
  CHECK_EQ(control.activate(0, &context), kSuccess);
  CHECK_EQ(control.make_current(context), kSuccess);
  CHECK_EQ(control.create_stream(context, pig::cuda::kStreamNonBlocking, &stream), kSuccess);
  Event event = nullptr;
  CHECK_EQ(driver.EventCreate(&event, pig::cuda::kEventDefault), kSuccess);
  CHECK_EQ(control.hang(stream), kSuccess);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      CHECK_EQ(driver.CtxSetCurrent(reinterpret_cast<Context>(context)), kSuccess);
      CHECK_EQ(driver.EventRecord(event, reinterpret_cast<Stream>(stream)),
               pig::cuda::kDeinitialized);
    });
  CHECK(control.wait_until_blocked(8, 8, 60));
  control.reset(1);
  CHECK_EQ(control.blocked_calls(), 0u);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path path =
      std::filesystem::absolute(argv[0]).parent_path() / "simulated_cuda.so";
  setenv("PYINSTRUMENT_GPU_LIBCUDA", path.c_str(), 1);
  CHECK_EQ(control.load(path), std::string());
  const Driver* const driver = pig::cuda::driver();
  CHECK_EQ(pig::cuda::driver_error(), std::string());
  CHECK(driver != nullptr);
  test_the_table_is_complete(*driver);
  test_threads(*driver);
  test_threads_that_are_stuck(*driver);
  test_a_reset_frees_many(*driver);
}
