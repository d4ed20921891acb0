// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "log/block_log.h"

namespace pig {

/// What STATE says (docs/run-file.md), but for what the log itself knows.
struct RunState {
  struct Open {
    uint32_t thread;
    uint32_t path;
    int64_t begin_ns;
    uint32_t step;
    uint32_t depth;
  };
  /// How the device is timed.
  struct Device {
    uint32_t every;                                      ///< the device is timed in every k-th step
    uint64_t records;                                    ///< events recorded
    uint64_t record_ns;                                  ///< host time that took
    std::vector<std::pair<uint32_t, uint64_t>> pending;  ///< spans not finished there, by path
  };
  /// What the file could not keep.
  struct Losses {
    uint64_t disk_error_spans = 0;  ///< not written because of the error
    BlockLog::Dropped dropped{};
    int error = 0;  ///< that of the storage which ended the history
  };
  bool final = false;
  int64_t now_ns = 0;  ///< all that had ended by then is in the log, and all else is open
  ClockAnchor anchor{};
  Losses losses;
  uint64_t phases_recorded = 0;
  uint64_t harvester_cpu_ns = 0;
  std::optional<StepItem> open_step;  ///< without its end
  std::vector<Open> open;
  std::optional<Device> device;
};

/// STATE begins with this and `now_ns`, which is as wide as any time: where nothing else is new, it
/// is all that has to be replaced.
constexpr std::string_view kStateBegin = "{\"now_ns\":";
std::array<char, 20> now_text(int64_t now_ns);

/// The STATE document: the state, what was dropped, and how many items the log has.
std::string to_json(const RunState& state, const DropCounters& drops, const BlockLog& log);

}  // namespace pig
