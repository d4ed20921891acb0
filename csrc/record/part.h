// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/drops.h"
#include "cuda/device_timing.h"
#include "log/run_log.h"

namespace pig {

struct RecordingOptions {
  std::optional<std::string> path;  ///< nothing: in memory
  bool overwrite = false;
  uint64_t history_spans = 0;
  uint64_t max_bytes = 0;
  std::string environment;  ///< a JSON object
  int64_t watchdog_ns = 0;  ///< the least time without progress that is a stall; 0: none is
};

/// The recording that begins, as its parts see it.
struct Session {
  const Clock& clock;
  DropCounters& drops;
  const RecordingOptions& options;
  uint64_t run_id = 0;
};

/// Why there is a harvest.
enum class Occasion {
  kTick,
  kAsked,  ///< somebody wants the log as it is now
  kEnd,
};

/// One harvest, as the parts see it.
struct Harvest {
  const Occasion occasion;
  const cuda::DeviceTiming::Findings& findings;
  RunLog& log;
  RunState state{};
  bool is_whole = true;    ///< nothing has begun after the time of the state
  bool is_urgent = false;  ///< the state has to be written, whatever the log has

  bool final() const { return occasion == Occasion::kEnd; }
};

/// What a harvest may have to tell.
enum class Notice {
  kHistoryStopped,  ///< once per recording: the file can no longer be written
  kDeviceWarnings,  ///< DeviceTiming has something to say
  kDeviceProbe,     ///< device times are wanted and the driver is loaded, but PyTorch has not yet
                    ///< been seen to initialise CUDA
  kProgramFacts,    ///< it is time to look again at what is known of the program
  kStall,           ///< nothing happens any more
};
/// Whom to tell; nobody when null.
inline void (*notice_function)(Notice) = nullptr;
inline void notify(Notice notice) {
  if (notice_function != nullptr) notice_function(notice);
}

void wake_harvester();

/// Something that is recorded: from threads that record it into the log, by way of the harvester.
///
/// The recorder has a list of parts (record/parts.cpp) and calls them in that order, each function
/// for all of them before the next. So all that refers to an entry of a table is taken before any
/// table is written. All but `close`, `abandon` and `activity` are called under the harvest lock.
class Part {
 public:
  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  /// A recording begins: what the last one has left is forgotten.
  virtual void reset(const Session& session) = 0;
  /// Nothing is recorded any more. With the GIL.
  virtual void close() {}
  /// In a forked child: lets go of the files that it has of its parent.
  virtual void abandon() {}

  /// Another number whenever there may be something to take. It grows in steps of `kChange`, so
  /// that sums of several never agree by chance.
  virtual uint64_t activity() const { return changes_.load(std::memory_order_acquire); }
  /// The harvester takes a turn, as it does every 95 ms, whether or not there is anything to take.
  virtual void tick() {}
  /// Whether what was recorded waits for a device.
  virtual bool is_waiting() const { return false; }

  /// Takes what is new, and adds to the state.
  virtual void take(Harvest&) {}
  /// Writes it, its tables first.
  virtual void drain(Harvest&) {}
  /// Whether the log lacks something that statistics alone have.
  virtual bool has_outgrown(const RunLog&) const { return false; }
  /// After the tick: writes what counts all items of the log, if that is due or can't wait.
  virtual void write_statistics(RunLog&, bool /*is_due*/) {}

  /// What is written to another log than the recording's, or to that one as it begins.
  enum class Copy { kTables, kAllButHistory };
  /// Appends the tables as they stand to a log that has none, and documents where all is wanted.
  virtual void write_copy(RunLog&, Copy) {}

 protected:
  static constexpr uint64_t kChange = uint64_t{1} << 32;
  ~Part() = default;  // nobody owns one by this name

  /// There is something to take.
  void note_change() { changes_.fetch_add(kChange, std::memory_order_release); }

 private:
  std::atomic<uint64_t> changes_{0};
};

}  // namespace pig
