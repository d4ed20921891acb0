// SPDX-License-Identifier: Apache-2.0
//
// Phases inside captured graphs, replay by replay.
//
// A phase that is entered while a stream is captured has stamps at its boundaries
// (cuda/graph_stamps.h) instead of events. Its span, when it is drained, says which: it becomes a
// phase of the graph. Each replay is noted as it is called, with the step and the path around it,
// and as the replays of one executable graph follow each other, the n-th call is the n-th run of
// each of its nodes. So a run of a phase is two stamps with the same number, and its step is that
// of the call.
//
// Graphs outlive recordings, and so do their stamps and the count of calls. What was called before
// a recording is none of its business.
//
// Where the numbers contradict this, as with two executables of one graph, or with nodes in loops
// and conditions, the graph is ambiguous from then on: nothing more is said of it, and that is
// counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_timing.h"
#include "record/part.h"
#include "record/statistic.h"

namespace pig {

class GraphPhases final : public Part {
 public:
  static constexpr size_t kMaxNotes = 65'536;  ///< replays that have not been seen to end

  // --- the program, with the GIL ---

  /// A graph begins to be captured, inside the phase of this path.
  void capture_begins(const cuda::DeviceTiming::Capture& capture, uint32_t path);
  /// It is captured, and will be replayed. Returns its number; nothing where no phase was in it.
  std::optional<uint32_t> capture_ends(const cuda::DeviceTiming::Capture& capture);
  void capture_fails(const cuda::DeviceTiming::Capture& capture);
  /// A graph is about to be replayed. Also counts where nothing is recorded.
  void replay_begins(uint32_t graph, uint32_t step, uint32_t path);
  /// The call has failed: it may have been, for an exception can come behind the launch.
  void replay_failed(uint32_t graph);

  // --- the harvester ---

  /// A phase that has ended in a capture, with its stamps.
  void add(uint32_t path, cuda::EventRef begin, cuda::EventRef end);

  void reset(const Session& session) override;
  bool is_waiting() const override;
  void take(Harvest& harvest) override;
  void drain(Harvest& harvest) override;

 private:
  using Names = std::vector<uint32_t>;  ///< of phases, outermost first

  using Key = std::pair<cuda::EventTimeline*, uint64_t>;  ///< of a capture

  struct Phase {
    uint32_t begin;
    uint32_t end;
    Names names;  ///< without those around the capture
  };
  struct Note {
    uint64_t run;
    uint32_t step;
    uint32_t path;
    bool has_failed = false;  ///< the call: whether it has run the stamps tell
  };
  struct Calls {
    uint64_t made = 0;    ///< all that have run, or will
    uint64_t failed = 0;  ///< and those that perhaps have
  };
  struct Graph {
    cuda::EventTimeline* timeline;
    uint32_t marks;          ///< nodes
    size_t around;           ///< so many phases were open around the capture
    bool is_called = false;  ///< its replays are noted
    bool is_hooked = false;  ///< the end of its capture is told
    bool is_whole = false;   ///< all of its phases are known
    std::vector<Phase> phases{};
    uint64_t calls = 0;     ///< as the harvester has last seen them
    uint64_t taken = 0;     ///< runs up to here are done with
    uint64_t newest = 0;    ///< that any node has begun, when they were last looked at
    uint64_t complete = 0;  ///< that all nodes have done
    std::deque<Note> notes{};
    bool is_ambiguous = false;
    // Of the recording.
    uint64_t calls_before = 0;
    uint64_t runs = 0;
    std::optional<uint32_t> index{};  ///< in `in_run_`
  };
  /// What a phase of a graph took, where it was replayed.
  struct Times {
    Statistic duration;
    uint64_t lost = 0;
  };
  struct Called {
    uint32_t graph;
    Note note;
  };
  struct Item {
    uint64_t timer_ns;
    GraphPhaseItem item;
  };

  uint32_t index_of(Graph& graph);
  /// Whether some of its replays have not been seen to end.
  static bool is_waiting(const Graph& graph) {
    return graph.is_called && !graph.phases.empty() && !graph.is_ambiguous && is_alive(graph) &&
           graph.taken < graph.calls;
  }
  static bool is_alive(const Graph& graph) {
    return graph.timeline->state() == cuda::EventTimeline::State::kReady;
  }
  static bool is_on() { return cuda::DeviceTiming::instance().most_graph_nodes() != 0; }
  uint32_t number_of(const Key& capture);
  static void look(Graph& graph);
  void take_calls();
  void renumber_notes(Graph& graph, const Calls& before);
  void take(Graph& graph);
  void take_run(Graph& graph, uint64_t run);
  void forget_notes(Graph& graph);
  uint32_t path_under(uint32_t path, const Names& names);
  std::string document() const;
  static std::string failure();

  /// What `replay_begins` needs is held for as long as it takes to note one.
  mutable std::mutex calls_mutex_;
  std::vector<Calls> calls_;    ///< by graph
  std::vector<Called> called_;  ///< since the harvester took them
  std::atomic<size_t> notes_{0};

  mutable std::mutex mutex_;
  DropCounters* drops_ = nullptr;
  std::deque<Graph> graphs_;
  std::map<Key, uint32_t> numbers_;
  std::map<Key, size_t> under_way_;   ///< captures, and how many phases are open around each
  std::vector<const Graph*> in_run_;  ///< the graphs that the recording's file tells of
  std::map<std::pair<uint32_t, uint32_t>, Times> times_;  ///< by graph and path
  std::vector<Item> waiting_;                             ///< for the clocks to be compared
  int64_t uncertainty_ns_ = 0;
  std::string failure_;  ///< why there are no marks
  bool has_news_ = false;
  int64_t written_ns_ = 0;
};

}  // namespace pig
