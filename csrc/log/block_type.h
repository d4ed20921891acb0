// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace pig {

/// The numbers stand in run files (docs/run-file.md).
enum class BlockType : uint16_t {
  kEnvironment = 1,
  kState = 2,
  kStatistics = 3,
  kSyncStatistics = 4,
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
};

/// Numbers below this one are documents, all others logs.
constexpr size_t kDocumentTypes = 16;
constexpr size_t kBlockTypes = 32;

}  // namespace pig
