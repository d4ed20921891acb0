// SPDX-License-Identifier: Apache-2.0
//
// What may make steps slow on its way to the log, and long steps in which run queues are read.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "check.h"
#include "drained_part.h"
#include "record/cause_log.h"
#include "record/host_use.h"
#include "record/metric_series.h"
#include "temporary_directory.h"

namespace {

using pig::CauseItem;
using pig::CauseKind;
using pig::CauseLog;
using Log = DrainedPart<CauseLog>;

/// While it exists a recording is active, and a step open.
struct Recording {
  explicit Recording(uint32_t step) {
    pig::active_epoch = 1;
    pig::open_step = step;
  }
  ~Recording() {
    pig::active_epoch = 0;
    pig::open_step = pig::kNoOpenStep;
  }
};

void what_has_no_room_is_counted() {
  Log log;
  const Recording recording(0);
  for (size_t i = 0; i < CauseLog::kMaxPending + 3; ++i)
    log.part.add(CauseKind::kCollection, 1, 2, 7, 0);
  CHECK_EQ(log.take<CauseItem>().size(), CauseLog::kMaxPending);
  CHECK_EQ(log.drops.get(pig::Drop::kMetrics), 3u);
}

uint64_t now = 0;

void write(const std::string& path, uint64_t waited_ns) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  std::fprintf(file, "7000 %llu 1\n", static_cast<unsigned long long>(waited_ns));
  std::fclose(file);
}

/// A reading takes so long that few steps are read, but each long one is: of what was waited since
/// the last reading it has what the steps in between have not.
void each_long_step_is_read() {
  const TemporaryDirectory folder;
  const std::string path = folder / "schedstat";
  Log log;
  DrainedPart<pig::MetricSeries> series;
  pig::inject_tick_function([] { return now += 1000; });
  pig::Clock clock;
  clock.start();
  pig::RecordingOptions options;
  pig::HostUse waits(series.part, log.part);
  waits.reset({clock, log.drops, options});
  const Recording recording(0);
  uint64_t waited_ns = 0;
  write(path, waited_ns);
  waits.watch_run_queue(path, {});
  const auto step = [&](uint32_t serial, uint64_t time_ns, uint64_t waits_ns) {
    waits.step_begins(serial);
    now += time_ns;
    write(path, waited_ns += waits_ns);
    waits.step_ends(serial);
  };
  uint32_t serial = 0;
  while (serial < 200) step(serial++, 100'000, 20);
  CHECK(log.take<CauseItem>().empty());
  step(serial++, 900'000, 700'000);
  const std::vector<CauseItem> taken = log.take<CauseItem>();
  CHECK_EQ(taken.size(), 1u);
  CHECK_EQ(taken[0].step, 200u);
  CHECK(taken[0].kind == CauseKind::kProcessorWait);
  CHECK_EQ(taken[0].time_ns, 700'000 + 20 - 20);
  // What went by between two steps may have been waited as well.
  while (serial < 210) step(serial++, 100'000, 20);
  now += 500'000;
  step(serial, 900'000, 700'000);
  CHECK(log.take<CauseItem>().empty());
  waits.close();
  pig::inject_tick_function(nullptr);
}

}  // namespace

int main() {
  what_has_no_room_is_counted();
  each_long_step_is_read();
  return 0;
}
