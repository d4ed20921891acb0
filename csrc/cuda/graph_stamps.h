// SPDX-License-Identifier: Apache-2.0
//
// Marks in captured graphs of one device.
//
// An event that is captured has no time that could be read: each replay overwrites it, and a host
// that runs ahead replays before anybody reads. So where a stream is captured, a boundary is a
// stamp: a kernel of one thread that writes the device's clock and the number of its run into a
// ring in host memory (graph_stamp_ptx.h), of which each node of a graph has its own. Reading it
// takes no call of the driver, and what was overwritten before it was read shows in the numbers.
//
// A stream that has joined a capture has to be joined to its origin again, with all that it does: a
// stamp behind that would end the capture with an error. So off the origin the end of a phase is a
// leaf of the graph, of which the stream's next node knows nothing.
//
// A node is never used again: its graph may be replayed for as long as the process lives. Code and
// memory are there before a capture begins (`prepare`), so that nothing in it can spoil it.
//
// The kernel's clock has another zero than that of events. Some stamps between events on the
// recorder's own stream give the distance, again now and then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/drops.h"
#include "base/throwing.h"
#include "cuda/device_clock.h"
#include "cuda/driver.h"

namespace pig::cuda {

class GraphStamps {
 public:
  static constexpr uint32_t kNodes = 16'384;  ///< as graph_stamp_ptx.h has it
  static constexpr uint32_t kRuns = 256;      ///< of a node that are kept; a power of two
  static constexpr uint64_t kTimerBits = 40;

  GraphStamps(const Driver& driver, Device device) : driver_(driver), device_(device) {}

  /// Gets the kernel, and memory for so many more nodes. With the context current in relaxed mode,
  /// outside a capture; may block. False where there is none; `failure` says why.
  bool prepare(uint32_t nodes);
  bool is_ready() const { return is_ready_.load(std::memory_order_acquire); }
  std::string failure() const;

  // --- recording threads, with the context current ---

  /// A node that stands for now in the capture of the stream, where a phase `begins` or ends: a new
  /// one or, where nothing was captured since, `last`. 0 where there is none; then `cause` says
  /// why. Throws nothing.
  uint32_t stamp(Stream stream, uint32_t stream_index, uint32_t last, uint32_t most, bool begins,
                 Drop& cause) noexcept;
  /// The number of the capture of a stream; 0 where it isn't captured.
  uint64_t capture_of(Stream stream) const;
  /// The same for one that has just begun there.
  uint64_t capture_begins(Stream stream);

  // --- whoever knows a node ---

  struct Node {
    uint64_t capture = 0;
    uint32_t stream = 0;
    std::vector<GraphNode> before;  ///< that it waits for
    std::vector<GraphNode> self;    ///< what then waits for it; empty where that isn't known
  };
  Node node(uint32_t number) const;
  /// How many nodes a capture has got.
  uint32_t nodes_of(uint64_t capture) const;

  /// The newest run of a node that is not older than `from`, which has run.
  uint64_t newest_run(uint32_t node, uint64_t from) const;
  /// What the node's clock read in a run; nothing where it has been overwritten, or is to come.
  std::optional<uint64_t> timer_ns(uint32_t node, uint64_t run) const;

  // --- the holder of the device lock, with the context current ---

  /// A recording begins: the clock of events has a new zero.
  void restart();
  /// Goes on with comparing the clocks, on the clock's own stream.
  DriverError compare(DeviceClock& clock, int64_t now_ns, bool sparing);
  void fail(std::string reason);

  // --- the harvester ---

  /// The distance of the two clocks, as last measured.
  struct Comparison {
    uint64_t timer_ns;  ///< of `kTimerBits`
    int64_t device_ns;  ///< at the same moment, by the clock of events
    int64_t uncertainty_ns;
    int64_t at_ns;  ///< on the run's clock

    /// The time of a stamp by the clock of events.
    int64_t on_device(uint64_t stamp_ns) const;
  };
  std::optional<Comparison> comparison() const {
    const std::lock_guard lock(mutex_);
    return comparison_;
  }

 private:
  static constexpr uint32_t kChunkNodes = 256;
  static constexpr uint32_t kStamps = 8;  ///< of one comparison

  struct Chunk {
    uint64_t* host = nullptr;
    DevicePointer device = 0;
  };

  /// A place in a capture.
  struct Place {
    uint64_t capture = 0;
    std::vector<GraphNode> after;  ///< what the next node will wait for
  };
  /// That of a stream; nothing where it isn't captured. May throw.
  std::optional<Place> place_of(Stream stream) const;

  bool load();
  bool allocate();
  bool refuse(const char* call, int result);
  int launch(uint32_t node, Stream stream) const;
  const uint64_t* ring(uint32_t node) const {
    return chunks_[node / kChunkNodes].host + size_t{node % kChunkNodes} * kRuns;
  }
  DriverError finish_comparison(DeviceClock& clock, int64_t now_ns);

  const Driver& driver_;
  const Device device_;
  Kernel kernel_ = nullptr;
  std::atomic<bool> is_ready_{false};
  std::array<Chunk, kNodes / kChunkNodes> chunks_{};

  mutable std::mutex mutex_;  ///< no call of the driver is made under it
  std::mutex preparing_;      ///< one thread prepares at a time
  std::string failure_;
  std::vector<Node> nodes_{1};  ///< by number; the first is that of comparisons
  uint32_t room_ = 0;           ///< for so many nodes there is memory
  std::unordered_map<uint64_t, uint32_t> nodes_of_capture_;
  std::pair<uint64_t, Stream> newest_capture_{};  ///< of those known to begin, and its origin
  std::optional<Comparison> comparison_;

  // Of the holder of the device lock.
  std::vector<Event> events_;
  uint64_t compared_runs_ = 0;  ///< of the first node, with those that are under way
  bool is_comparing_ = false;
  int64_t compare_due_ns_ = 0;
  uint64_t timer_step_ns_ = 0;  ///< divisor of all distances so far
};

}  // namespace pig::cuda
