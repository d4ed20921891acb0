// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "hot/path_table.h"
#include "log/block_log.h"
#include "log/items.h"

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
    uint32_t every;      ///< the device is timed in one of so many steps
    uint64_t records;    ///< events recorded
    uint64_t record_ns;  ///< host time that took
    std::vector<std::pair<uint32_t, uint64_t>> pending;  ///< spans not finished there, by path
  };
  bool final = false;
  int64_t now_ns = 0;     ///< all that had ended by then is in the log, and all else is open
  int64_t active_ns = 0;  ///< when the program was last seen to do anything
  ClockAnchor anchor{};
  uint64_t phases_recorded = 0;
  uint64_t harvester_cpu_ns = 0;
  std::optional<StepItem> open_step;  ///< without its end
  std::vector<Open> open;
  std::optional<Device> device;
};

/// One run's records in their encoding, in the order in which readers need them: a name before its
/// path, a path and a thread before its spans.
class RunLog : public BlockLog {
 public:
  RunLog(Storage& storage, uint64_t run_id, uint64_t history_spans, uint64_t max_bytes);

  template <typename Item>
  void append(const std::vector<Item>& items) {
    count(Item::kBlock) += items.size();
    BlockLog::append(Item::kBlock, items.data(), sizeof(Item), items.size());
  }

  // Tables, which items refer to by number.

  /// How many entries were appended so far: what a table has beyond that is new.
  size_t entries(BlockType table) const { return appended_[index_of(table)]; }
  /// Appends an entry of several fields.
  template <typename... Fields>
  void append_entry(BlockType table, const Fields&... fields) {
    if (entries(table) == most_entries_[index_of(table)]) return;
    std::vector<uint8_t> entry;
    (put(entry, fields), ...);
    BlockLog::append(table, entry);
    ++count(table);
  }
  /// Appends a path, with its name where that is new.
  void append_path(const PathTable::Path& path);

  /// Gives `subscription` the tables as they stand in the log, and from then on all that is
  /// written. `write_copy` appends all tables to a log that has none.
  void open_subscription(LogSubscription& subscription,
                         const std::function<void(RunLog&)>& write_copy);

  using BlockLog::write_document;
  void write_document(BlockType type, const std::string& json);
  /// Writes what was appended, and the state.
  void write_tick(const RunState& state, const DropCounters& drops);
  /// Writes the last tick again, with another `now_ns`. False where there is more to write.
  bool repeat_tick(int64_t now_ns);
  /// The state alone, where it stands when no journal is needed any more, with the losses of
  /// `file`, which is this log or the one that it stands in for.
  void write_state(const RunState& state, const DropCounters& drops, const RunLog& file);

 private:
  uint64_t& count(BlockType type) { return appended_[index_of(type)]; }
  uint32_t name_of(uint32_t phase);
  std::string state_json(const RunState& state, const DropCounters& drops,
                         const RunLog& file) const;

  std::array<uint64_t, kBlockTypes> appended_{};  ///< those included that an error keeps out
  std::array<uint64_t, kBlockTypes> most_entries_;
  std::vector<uint32_t> name_of_phase_;  ///< by the phase's id
};

}  // namespace pig
