// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "log/log_subscription.h"
#include "log/run_log.h"
#include "record/part.h"

/// A part of a recording that has no others, and the log that it is drained to.
template <typename Part>
class DrainedPart {
 public:
  DrainedPart() {
    pig::inject_tick_function([] { return uint64_t{0}; });
    clock_.start();
    log.add_subscription(&subscription_);
    reset();
  }
  ~DrainedPart() { pig::inject_tick_function(nullptr); }

  void reset() { part.reset({clock_, drops, options_}); }

  /// What one harvest takes.
  template <typename Item>
  std::vector<Item> take() {
    const pig::cuda::DeviceTiming::Findings findings;
    pig::Harvest harvest{pig::Occasion::kTick, findings, log};
    part.take(harvest);
    part.drain(harvest);
    return items<Item>(subscription_.take());
  }

  Part part;
  pig::DropCounters drops;
  pig::MemoryStorage storage;
  pig::RunLog log{storage, 1, uint64_t{1} << 40, uint64_t{1} << 40};

 private:
  template <typename Item>
  static std::vector<Item> items(const std::vector<uint8_t>& records) {
    std::vector<Item> found;
    uint32_t head[4];  // type, bytes, and the first item's number
    for (size_t at = 0; at < records.size(); at += sizeof head + head[1]) {
      std::memcpy(head, &records[at], sizeof head);
      if (head[0] != static_cast<uint32_t>(Item::kBlock)) continue;
      const size_t before = found.size();
      found.resize(before + head[1] / sizeof(Item));
      std::memcpy(&found[before], &records[at + sizeof head], head[1]);
    }
    return found;
  }

  pig::Clock clock_;
  pig::RecordingOptions options_;
  pig::LogSubscription subscription_;
};
