// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cuda/driver.h"

namespace sim {

/// What the recorder's stamp (csrc/cuda/graph_stamp_ptx.h) is launched with.
struct Stamp {
  uint64_t ring = 0;
  uint32_t node = 0;
  uint32_t mask = 0;
};

/// What one captured call does each time that its graph is launched, and for how long.
struct Node {
  int64_t duration_ns = 0;
  std::function<void()> run;   ///< may be empty: for a test's kernel, or the record of an event
  std::optional<Stamp> stamp;  ///< runs when the device gets there, and not at the launch
};

struct Graph {
  uint64_t context = 0;
  std::vector<Node> nodes;
};

/// One capture of a stream, and of those that join it, into a graph.
struct Capture {
  uint64_t id = 0;      ///< never used twice
  uint64_t thread = 0;  ///< that began it
  pig::cuda::CaptureMode mode = pig::cuda::kCaptureGlobal;
  uint64_t origin = 0;  ///< the stream it began on
  bool invalidated = false;
  bool ended = false;
  Graph graph;
  std::map<uint64_t, std::vector<uint64_t>> edges;  ///< what each node waits for

  /// Whether the nodes `after` wait for all of these, or are them.
  bool waits_for(const std::vector<uint64_t>& after, const std::vector<uint64_t>& nodes) const {
    std::set<uint64_t> reached;
    std::vector<uint64_t> next = after;
    while (!next.empty()) {
      const uint64_t node = next.back();
      next.pop_back();
      if (!reached.insert(node).second) continue;
      if (const auto found = edges.find(node); found != edges.end())
        next.insert(next.end(), found->second.begin(), found->second.end());
    }
    return std::all_of(nodes.begin(), nodes.end(),
                       [&](uint64_t node) { return reached.contains(node); });
  }
};

/// The captures under way, and the rules of who may do what meanwhile. The rules are those of the
/// documentation of cuThreadExchangeStreamCaptureMode.
class Captures {
 public:
  std::shared_ptr<Capture> begin(uint64_t thread, pig::cuda::CaptureMode mode, uint64_t origin) {
    auto capture = std::make_shared<Capture>();
    capture->id = ++last_id_;
    capture->thread = thread;
    capture->mode = mode;
    capture->origin = origin;
    active_.push_back(capture);
    return capture;
  }

  void end(const std::shared_ptr<Capture>& capture) {
    capture->ended = true;
    std::erase(active_, capture);
  }

  void invalidate(Capture& capture) {
    if (capture.ended || capture.invalidated) return;
    capture.invalidated = true;
    ++invalidated_;
  }

  /// Whether a thread may make a call that capture does not see. If not, the captures that forbid
  /// it are invalid from now on.
  bool permit_unsafe_call(uint64_t thread, pig::cuda::CaptureMode mode) {
    bool permitted = true;
    for (const auto& capture : active_) {
      const bool own = capture->thread == thread;
      const bool forbids =
          own ? capture->mode != pig::cuda::kCaptureRelaxed && mode != pig::cuda::kCaptureRelaxed
              : capture->mode == pig::cuda::kCaptureGlobal && mode == pig::cuda::kCaptureGlobal;
      if (!forbids) continue;
      permitted = false;
      invalidate(*capture);
    }
    return permitted;
  }

  /// How many have become invalid since the reset.
  uint64_t invalidated() const { return invalidated_; }

 private:
  std::vector<std::shared_ptr<Capture>> active_;
  uint64_t invalidated_ = 0;
  uint64_t last_id_ = 0;
};

}  // namespace sim
