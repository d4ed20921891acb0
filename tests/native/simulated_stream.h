// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "simulated_capture.h"

namespace sim {

/// One entry of a stream's queue: a kernel, the record of an event (no duration), a wait for
/// another one (no duration, `after`), or something that never ends. Times are the device's.
struct Work {
  int device = 0;
  int64_t earliest_ns = 0;  ///< when the device knows of it
  int64_t duration_ns = 0;
  bool endless = false;
  /// Must have ended; besides what stands before it in its stream.
  std::vector<std::shared_ptr<Work>> after;
  /// Must have begun: the entry before it in the hardware queue that its stream shares.
  std::shared_ptr<Work> behind;

  /// Of a graph: its stamps, and how long after its begin the device gets to each.
  std::deque<std::pair<int64_t, Stamp>> stamps;

  bool begun = false;
  bool ended = false;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct Context {
  uint64_t handle = 0;
  uint64_t id = 0;  ///< unlike the handle never used again
  int device = 0;
  bool alive = true;
  int error = 0;  ///< sticks
};

struct Stream {
  uint64_t handle = 0;
  uint64_t number = 0;  ///< in the order of the device's streams
  std::shared_ptr<Context> context;
  bool is_legacy = false;
  bool non_blocking = false;  ///< neither waits for the legacy stream nor is waited for by it
  std::deque<std::shared_ptr<Work>> queue;
  std::shared_ptr<Work> last;  ///< the youngest entry, ended or not
  int64_t free_at_ns = INT64_MIN;
  std::shared_ptr<Capture> capture;
  std::vector<uint64_t> dependencies;  ///< in the capture: the nodes that the next one waits for
  bool has_edge_data = false;          ///< of which it need not wait for the end
};

struct Event {
  uint64_t handle = 0;
  std::shared_ptr<Context> context;
  bool has_timing = true;
  bool is_known = false;         ///< somebody has asked whether its record is complete, and it was
  std::shared_ptr<Work> record;  ///< of the last record outside a capture
  std::shared_ptr<Capture> capture;    ///< of the last record, where that was inside one
  std::vector<uint64_t> dependencies;  ///< and those of its stream then
  uint64_t record_serial = 0;          ///< one more than its place in the list of records; 0: none
};

}  // namespace sim
