// SPDX-License-Identifier: Apache-2.0
//
// What the blocks of a run file hold, item by item (docs/run-file.md), and which blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace pig {

/// The numbers stand in run files (docs/run-file.md).
enum class BlockType : uint16_t {
  kEnvironment = 1,
  kState = 2,
  kStatistics = 3,
  kSyncStatistics = 4,
  kTick = 5,
  kOperations = 6,
  kMemory = 7,
  kEnergy = 8,
  kCollectiveGroups = 9,
  kStalls = 10,
  kAspects = 11,
  kNames = 16,
  kPaths = 17,
  kThreads = 18,
  kDroppedSteps = 19,
  kSteps = 20,
  kSpans = 21,
  kDeviceTimes = 22,
  kStreams = 23,
  kDeviceClocks = 24,
  kSyncSites = 26,
  kSyncs = 27,
  kMetricNames = 28,
  kMetrics = 29,
  kCollectives = 30,
  kGraphPhases = 31,
  kCauses = 32,
};

/// Numbers below this one are documents, all others logs.
constexpr size_t kDocumentTypes = 16;
constexpr size_t kBlockTypes = 33;
constexpr size_t index_of(BlockType type) { return static_cast<size_t>(type); }

/// Appends a value as it lies in memory.
template <typename T>
void put(std::vector<uint8_t>& out, const T& value) {
  out.resize(out.size() + sizeof value);
  std::memcpy(out.data() + out.size() - sizeof value, &value, sizeof value);
}
inline void put(std::vector<uint8_t>& out, const std::string& text) {
  put(out, static_cast<uint16_t>(text.size()));
  out.insert(out.end(), text.begin(), text.end());
}

struct SpanItem {
  static constexpr BlockType kBlock = BlockType::kSpans;

  int64_t host_begin_ns;
  int64_t host_end_ns;
  int64_t self_ns;
  uint32_t step;
  uint32_t path;
  uint32_t thread;
  uint16_t depth;
  uint16_t flags;
};
static_assert(sizeof(SpanItem) == 40);

struct StepItem {
  static constexpr BlockType kBlock = BlockType::kSteps;

  uint32_t serial;
  uint32_t thread;
  int64_t begin_ns;
  int64_t end_ns;
  double samples;  ///< NaN: unknown
  uint32_t items;
  uint32_t flags;  ///< 1: complete; 4: profiled; those of ModuleSampling
};
static_assert(sizeof(StepItem) == 40);

/// A step that was dropped leaves a gap in the serial numbers, which readers close.
struct DroppedStepItem {
  static constexpr BlockType kBlock = BlockType::kDroppedSteps;

  uint32_t serial;
};

struct DeviceTimeItem {
  static constexpr BlockType kBlock = BlockType::kDeviceTimes;
  static constexpr uint64_t kUnfinished = 1;
  static constexpr uint64_t kNoStream = 0xFFFF;  ///< the stream is not known

  uint64_t where;  ///< the span's index, bits 0-39; the stream, bits 40-55; flags, bits 56-63
  int64_t begin_ns;
  int64_t duration_ns;
};
static_assert(sizeof(DeviceTimeItem) == 24);

struct StreamItem {
  static constexpr BlockType kBlock = BlockType::kStreams;

  uint64_t handle;
  uint32_t device;
  uint32_t flags;
};
static_assert(sizeof(StreamItem) == 16);

/// One correlation of a device's clock with the run's.
struct DeviceClockItem {
  static constexpr BlockType kBlock = BlockType::kDeviceClocks;

  uint32_t device;
  uint32_t pad;
  int64_t device_ns;
  int64_t run_ns;
  int64_t uncertainty_ns;
};
static_assert(sizeof(DeviceClockItem) == 32);

/// One wait of the host for a device.
struct SyncItem {
  static constexpr BlockType kBlock = BlockType::kSyncs;

  int64_t begin_ns;
  int64_t duration_ns;  ///< -1: nothing was waited for, or the price is unknown
  uint64_t bytes;
  uint32_t site;
  uint32_t path;
  uint32_t step;
  uint32_t thread;
};
static_assert(sizeof(SyncItem) == 40);

/// The place in the program where it waits. The numbers of kinds stand in run files.
struct SyncSite {
  uint32_t line;
  uint32_t kind;
  std::string file;
  std::string function;
};

struct MetricItem {
  static constexpr BlockType kBlock = BlockType::kMetrics;

  uint64_t update;
  int64_t host_ns;
  double value;
  uint32_t name;
  uint32_t step;  ///< serial; 0xFFFFFFFF none
};
static_assert(sizeof(MetricItem) == 32);

/// One collective operation. Times are -1 where they are unknown.
struct CollectiveItem {
  static constexpr BlockType kBlock = BlockType::kCollectives;

  int64_t created_ns;
  int64_t started_ns;
  int64_t ended_ns;
  int64_t duration_ns;  ///< by the device's clock
  int64_t sequence;     ///< in its group
  int64_t bytes;        ///< -1: unknown
  uint32_t group;
  uint16_t operation;
  uint16_t flags;  ///< 1: point to point; 2: a wait of the host, from created_ns to ended_ns
};
static_assert(sizeof(CollectiveItem) == 56);

/// One run of a phase in a replay of a graph. Its begin is by the device's clock; -1: unknown.
struct GraphPhaseItem {
  static constexpr BlockType kBlock = BlockType::kGraphPhases;
  static constexpr uint32_t kUnknownStep = 0xFFFFFFFEu;

  int64_t begin_ns;
  int64_t duration_ns;
  uint32_t path;
  uint32_t step;  ///< serial; 0xFFFFFFFF none
  uint32_t graph;
  uint32_t run;  ///< of the graph, from 1 on
};
static_assert(sizeof(GraphPhaseItem) == 32);

/// What may have made a step slow. The numbers stand in run files, and each aspect knows its own.
enum class CauseKind : uint32_t {
  kCollection = 1,
  kProcessorWait = 2,
  kThrottled = 3,
  // What Python alone adds: 8 checkpoints, 9 logging calls.
  kPageFaults = 10,
  kDiskPages = 11,
  kMemoryPressure = 12,
  kGilWait = 13,
  kComputing = 14,
  kSteal = 15,
};

/// A time in which such a cause was at work; or, with a step, how long it was at work in that step.
struct CauseItem {
  static constexpr BlockType kBlock = BlockType::kCauses;

  int64_t begin_ns;  ///< of a sum, when it was last added to
  int64_t time_ns;
  uint32_t step;    ///< serial, of a sum; 0xFFFFFFFF: a time
  uint32_t thread;  ///< the system's number of the thread that it was on, of a time
  CauseKind kind;
  uint32_t note;  ///< what it means, the kind says
};
static_assert(sizeof(CauseItem) == 32);

struct ThreadInfo {
  uint64_t native_id;
  std::string name;
};

}  // namespace pig
