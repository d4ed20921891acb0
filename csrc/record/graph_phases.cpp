// SPDX-License-Identifier: Apache-2.0
#include "record/graph_phases.h"

#include <algorithm>
#include <utility>

#include "record/parts.h"

namespace pig {
namespace {

constexpr size_t kMaxWaitingItems = 65'536;
/// What a stamp has of its time is ambiguous 550 s after a comparison of the clocks.
constexpr int64_t kComparisonHoldsNs = 480'000'000'000;
constexpr int64_t kDocumentIntervalNs = 1'000'000'000;

/// The names along a path of a recording, outermost first.
std::vector<uint32_t> names_along(uint32_t path) {
  const std::vector<PathTable::Path> paths = parts().spans.paths().since(0);
  std::vector<uint32_t> names;
  for (; path < paths.size(); path = paths[path].parent) names.push_back(paths[path].phase);
  std::reverse(names.begin(), names.end());
  return names;
}

/// Of a text, what can stand in JSON as it is.
std::string without_quotes(std::string text) {
  for (char& c : text)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

}  // namespace

// The program -------------------------------------------------------------------------------------

void GraphPhases::capture_begins(const cuda::DeviceTiming::Capture& capture, uint32_t path) {
  const size_t around = names_along(path).size();
  const std::lock_guard lock(mutex_);
  under_way_[{capture.timeline, capture.number}] = around;
}

std::optional<uint32_t> GraphPhases::capture_ends(const cuda::DeviceTiming::Capture& capture) {
  const Key key{capture.timeline, capture.number};
  const std::lock_guard lock(mutex_);
  std::optional<uint32_t> number;
  if (capture.timeline->stamps().nodes_of(capture.number) != 0) {
    number = number_of(key);
    graphs_[*number].marks = capture.timeline->stamps().nodes_of(capture.number);
    graphs_[*number].is_called = true;
    const std::lock_guard calls_lock(calls_mutex_);
    calls_.resize(std::max<size_t>(calls_.size(), *number + 1));
  }
  under_way_.erase(key);
  return number;
}

void GraphPhases::capture_fails(const cuda::DeviceTiming::Capture& capture) {
  const std::lock_guard lock(mutex_);
  under_way_.erase({capture.timeline, capture.number});
}

void GraphPhases::replay_begins(uint32_t number, uint32_t step, uint32_t path) {
  const std::lock_guard lock(calls_mutex_);
  if (number >= calls_.size()) return;
  ++calls_[number].made;
  if (!is_on()) return;
  note_change();
  if (notes_.load(std::memory_order_relaxed) >= kMaxNotes) return;
  called_.push_back({number, {calls_[number].made, step, path}});
  notes_.fetch_add(1, std::memory_order_relaxed);
}

void GraphPhases::replay_failed(uint32_t number) {
  const std::lock_guard lock(calls_mutex_);
  if (number >= calls_.size() || calls_[number].made == 0) return;
  ++calls_[number].failed;
  const uint64_t run = calls_[number].made--;
  // Where nothing is recorded nobody takes them.
  if (is_on() && called_.size() < 2 * kMaxNotes) called_.push_back({number, {run, 0, 0, true}});
}

// The harvester -----------------------------------------------------------------------------------

void GraphPhases::reset(const Session& session) {
  const std::lock_guard lock(mutex_);
  drops_ = &session.drops;
  under_way_.clear();
  in_run_.clear();
  times_.clear();
  waiting_.clear();
  uncertainty_ns_ = 0;
  failure_.clear();
  has_news_ = false;
  written_ns_ = -kDocumentIntervalNs;
  for (Graph& graph : graphs_) look(graph);
  take_calls();
  for (Graph& graph : graphs_) {
    forget_notes(graph);
    // What of it still runs was called before.
    graph.taken = graph.is_called ? std::max(graph.calls, graph.newest) : graph.complete;
    graph.calls_before = graph.calls;
    graph.runs = 0;
    graph.index.reset();
  }
}

/// That of a capture, which is added where it is new.
uint32_t GraphPhases::number_of(const Key& capture) {
  const auto [found, is_new] = numbers_.try_emplace(capture, static_cast<uint32_t>(graphs_.size()));
  if (is_new) {
    const auto around = under_way_.find(capture);
    graphs_.push_back({.timeline = capture.first,
                       .marks = capture.first->stamps().nodes_of(capture.second),
                       .around = around != under_way_.end() ? around->second : 0,
                       .is_hooked = around != under_way_.end()});
  }
  return found->second;
}

void GraphPhases::add(uint32_t path, cuda::EventRef begin, cuda::EventRef end) {
  // Otherwise it was open across the begin or the end of a capture, or was in two.
  if (!cuda::is_stamp(begin) || !cuda::is_stamp(end) ||
      cuda::timeline_of(begin) != cuda::timeline_of(end))
    return drops_->add(Drop::kDeviceCapturing);
  cuda::EventTimeline* const timeline =
      cuda::DeviceTiming::instance().timelines()[cuda::timeline_of(begin)];
  const cuda::GraphStamps::Node first = timeline->stamps().node(cuda::node_of(begin));
  const cuda::GraphStamps::Node last = timeline->stamps().node(cuda::node_of(end));
  if (first.capture != last.capture) return drops_->add(Drop::kDeviceCapturing);
  if (first.stream != last.stream) return drops_->add(Drop::kDeviceStreamChanged);
  Names names = names_along(path);
  const std::lock_guard lock(mutex_);
  Graph& graph = graphs_[number_of({timeline, first.capture})];
  names.erase(names.begin(),
              names.begin() + static_cast<ptrdiff_t>(std::min(graph.around, names.size())));
  index_of(graph);
  graph.phases.push_back({cuda::node_of(begin), cuda::node_of(end), std::move(names)});
  has_news_ = true;
}

uint32_t GraphPhases::index_of(Graph& graph) {
  if (!graph.index) {
    in_run_.push_back(&graph);
    graph.index = static_cast<uint32_t>(in_run_.size() - 1);
  }
  return *graph.index;
}

bool GraphPhases::is_waiting() const {
  if (!is_on()) return false;
  {
    const std::lock_guard lock(calls_mutex_);
    if (!called_.empty()) return true;
  }
  const std::lock_guard lock(mutex_);
  return !waiting_.empty() || std::any_of(graphs_.begin(), graphs_.end(),
                                          [](const Graph& graph) { return is_waiting(graph); });
}

/// Finds out how far its nodes are.
void GraphPhases::look(Graph& graph) {
  const auto for_each_run = [&graph](auto use) {
    for (const Phase& phase : graph.phases)
      for (const uint32_t node : {phase.begin, phase.end})
        use(graph.timeline->stamps().newest_run(node, graph.taken));
  };
  graph.newest = graph.taken;
  for_each_run([&](uint64_t run) { graph.newest = std::max(graph.newest, run); });
  // All once more: what is read now is as it was after the newest run had begun, or newer.
  graph.complete = graph.phases.empty() ? graph.taken : ~uint64_t{0};
  for_each_run([&](uint64_t run) { graph.complete = std::min(graph.complete, run); });
}

/// Takes the calls that were noted. Of those that failed, as many have run as nodes have run more
/// often than there were other calls.
void GraphPhases::take_calls() {
  std::vector<Called> called;
  std::vector<std::pair<Graph*, Calls>> before;
  {
    const std::lock_guard lock(calls_mutex_);
    called.swap(called_);
    for (size_t i = 0; i < calls_.size(); ++i) {
      Calls& calls = calls_[i];
      if (calls.failed != 0 && graphs_[i].newest > calls.made) {
        before.emplace_back(&graphs_[i], calls);
        calls.made = std::min(graphs_[i].newest, calls.made + calls.failed);
        calls.failed -= calls.made - before.back().second.made;
      }
      graphs_[i].calls = calls.made;
    }
  }
  for (const Called& call : called) {
    std::deque<Note>& notes = graphs_[call.graph].notes;
    if (!call.note.has_failed) {
      notes.push_back(call.note);
    } else if (!notes.empty() && notes.back().run == call.note.run) {
      notes.back().has_failed = true;
    }
  }
  for (const auto& [graph, calls] : before) renumber_notes(*graph, calls);
}

/// What was called behind a failed call that has run, as is now known, runs so much later.
void GraphPhases::renumber_notes(Graph& graph, const Calls& before) {
  // Where only some have run nobody knows which.
  if (graph.calls != before.made + before.failed) return forget_notes(graph);
  uint64_t later = before.failed;
  for (const Note& note : graph.notes) later -= note.has_failed ? 1 : 0;
  for (Note& note : graph.notes) {
    note.run += later;
    later += std::exchange(note.has_failed, false) ? 1 : 0;
  }
}

void GraphPhases::take(Harvest& harvest) {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  for (Graph& graph : graphs_)
    if (is_alive(graph)) look(graph);
  // After that: what has run by then was called before.
  take_calls();
  for (Graph& graph : graphs_) {
    if (graph.phases.empty() || !is_alive(graph)) continue;
    // The spans of a capture that has just ended may come with the next harvest.
    if (graph.is_whole || harvest.final()) take(graph);
    graph.is_whole = graph.is_called || !graph.is_hooked;
    if (harvest.final() && is_waiting(graph))
      drops_->add(Drop::kDeviceUnfinished, (graph.calls - graph.taken) * graph.phases.size());
  }
}

void GraphPhases::take(Graph& graph) {
  // The run before the newest is over, so each node has done it, if all are in each run. And none
  // has begun that nobody has called.
  graph.is_ambiguous |=
      graph.complete + 1 < graph.newest || (graph.is_called && graph.newest > graph.calls);
  if (graph.newest > graph.taken) {
    index_of(graph);
    has_news_ = true;
  }
  if (graph.is_ambiguous) {
    drops_->add(Drop::kDeviceGraphUnclear, (graph.newest - graph.taken) * graph.phases.size());
    graph.taken = graph.newest;
    return forget_notes(graph);
  }
  while (graph.taken < graph.complete) take_run(graph, ++graph.taken);
}

void GraphPhases::take_run(Graph& graph, uint64_t run) {
  constexpr uint64_t kTimerMask = (uint64_t{1} << cuda::GraphStamps::kTimerBits) - 1;
  const cuda::GraphStamps& stamps = graph.timeline->stamps();
  Note note{run, GraphPhaseItem::kUnknownStep, kNoPath};
  while (!graph.notes.empty() && graph.notes.front().run <= run) {
    if (graph.notes.front().run == run) note = graph.notes.front();
    graph.notes.pop_front();
    notes_.fetch_sub(1, std::memory_order_relaxed);
  }
  ++graph.runs;
  for (const Phase& phase : graph.phases) {
    const uint32_t path = path_under(note.path, phase.names);
    Times& times = times_[{*graph.index, path}];
    const auto begin_ns = stamps.timer_ns(phase.begin, run);
    const auto end_ns = stamps.timer_ns(phase.end, run);
    if (!begin_ns || !end_ns) {
      ++times.lost;
      drops_->add(Drop::kDeviceGraphReplays);
      continue;
    }
    const uint64_t duration_ns = (*end_ns - *begin_ns) & kTimerMask;
    times.duration.add(duration_ns);
    waiting_.push_back({*begin_ns,
                        {-1, static_cast<int64_t>(duration_ns), path, note.step, *graph.index,
                         static_cast<uint32_t>(run)}});
  }
}

void GraphPhases::forget_notes(Graph& graph) {
  notes_.fetch_sub(graph.notes.size(), std::memory_order_relaxed);
  graph.notes.clear();
}

/// The path of a phase of a graph that was replayed inside the phase of a path.
uint32_t GraphPhases::path_under(uint32_t path, const Names& names) {
  for (const uint32_t name : names) {
    bool full = false;
    path = parts().spans.paths().intern(path, name, full);
    if (full) drops_->add(Drop::kPaths);
  }
  return path;
}

void GraphPhases::drain(Harvest& harvest) {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  std::vector<GraphPhaseItem> items;
  std::vector<Item> still;
  const bool may_wait = !harvest.final() && waiting_.size() < kMaxWaitingItems;
  for (Item& one : waiting_) {
    const cuda::GraphStamps& stamps = in_run_[one.item.graph]->timeline->stamps();
    const auto clocks = stamps.comparison();
    if (clocks && harvest.state.now_ns - clocks->at_ns < kComparisonHoldsNs) {
      one.item.begin_ns = clocks->on_device(one.timer_ns);
      uncertainty_ns_ = std::max(uncertainty_ns_, clocks->uncertainty_ns);
    } else if (may_wait && !clocks && stamps.is_ready()) {
      still.push_back(one);
      continue;
    }
    items.push_back(one.item);
  }
  waiting_ = std::move(still);
  harvest.log.append(items);
  if (failure_.empty()) {
    failure_ = failure();
    has_news_ |= !failure_.empty();
  }
  const int64_t now_ns = harvest.state.now_ns;
  if (!has_news_ ||
      (harvest.occasion == Occasion::kTick && now_ns - written_ns_ < kDocumentIntervalNs))
    return;
  has_news_ = false;
  written_ns_ = now_ns;
  parts().documents.set("graph_phases", document());
}

std::string GraphPhases::failure() {
  for (cuda::EventTimeline* timeline : cuda::DeviceTiming::instance().timelines())
    if (std::string reason = timeline->stamps().failure(); !reason.empty()) return reason;
  return {};
}

std::string GraphPhases::document() const {
  std::string json = "{\"failure\":\"" + without_quotes(failure_) + "\",\"graphs\":[";
  const auto separate = [&json] {
    if (json.back() != '[') json += ',';
  };
  const auto number = [&json](const char* name, auto value) {
    if (json.back() != '{') json += ',';
    json.append("\"").append(name).append("\":").append(std::to_string(value));
  };
  for (const Graph* graph : in_run_) {
    separate();
    json += '{';
    number("device", graph->timeline->device());
    number("marks", graph->marks);
    number("replays", graph->is_called ? graph->calls - graph->calls_before : graph->runs);
    json.append(",\"is_ambiguous\":").append(graph->is_ambiguous ? "true}" : "false}");
  }
  json += "],\"phases\":[";
  for (const auto& [key, times] : times_) {
    separate();
    json += '{';
    number("graph", key.first);
    number("path", key.second);
    number("count", times.duration.count());
    number("total_ns", times.duration.total());
    number("min_ns", times.duration.min());
    number("p50_ns", times.duration.quantile(50));
    number("p95_ns", times.duration.quantile(95));
    number("max_ns", times.duration.max());
    number("lost", times.lost);
    json += '}';
  }
  json += ']';
  number("uncertainty_ns", uncertainty_ns_);
  return json + '}';
}

}  // namespace pig
