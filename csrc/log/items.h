// SPDX-License-Identifier: Apache-2.0
//
// What the blocks of a run file hold, item by item (docs/run-file.md), and which blocks.
#pragma once

#include <cstdint>
#include <string>

#include "log/block_type.h"

namespace pig {

/// A finished span.
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

/// A closed step.
struct StepItem {
  static constexpr BlockType kBlock = BlockType::kSteps;

  uint32_t serial;
  uint32_t thread;
  int64_t begin_ns;
  int64_t end_ns;
  double samples;  ///< NaN: unknown
  uint32_t items;
  uint32_t flags;  ///< 1: complete
};
static_assert(sizeof(StepItem) == 40);

/// The device times of a span.
struct DeviceTimeItem {
  static constexpr BlockType kBlock = BlockType::kDeviceTimes;
  static constexpr uint64_t kUnfinished = 1;

  uint64_t where;  ///< the span's index, bits 0-39; the stream, bits 40-55; flags, bits 56-63
  int64_t begin_ns;
  int64_t duration_ns;
};
static_assert(sizeof(DeviceTimeItem) == 24);

/// A stream of a device.
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

/// One value of a reading of metrics.
struct MetricItem {
  static constexpr BlockType kBlock = BlockType::kMetrics;

  uint64_t update;
  int64_t host_ns;
  double value;
  uint32_t name;
  uint32_t step;  ///< serial; 0xFFFFFFFF none
};
static_assert(sizeof(MetricItem) == 32);

/// A thread that records.
struct ThreadInfo {
  uint64_t native_id;
  std::string name;
};

}  // namespace pig
