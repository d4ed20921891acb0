// SPDX-License-Identifier: Apache-2.0
#include "simulated_machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sim {
namespace {

using pig::cuda::CaptureMode;

constexpr uint64_t kNullStream = 0;
constexpr uint64_t kLegacyStream = 1;
constexpr uint64_t kPerThreadStream = 2;

}  // namespace

// Setting up --------------------------------------------------------------------------------------

Machine::Machine(HostClock& host, int devices)
    : host_(&host), devices_(static_cast<size_t>(devices)) {
  for (Device& device : devices_)
    device.attributes = {{75, 9}, {76, 0}, {16, 132}};  // capability 9.0, 132 multiprocessors
}

void Machine::reset(int devices) {
  unlink_work();
  Machine fresh(*host_, devices);
  fresh.handle_ = handle_;
  fresh.left_memory_ = std::move(left_memory_);
  for (auto& [pointer, memory] : host_memory_) fresh.left_memory_.push_back(std::move(memory));
  *this = std::move(fresh);
}

/// A queue is a chain of shared pointers; freed from its end it would recurse as deep as it is
/// long.
void Machine::unlink_work() {
  for (const auto& stream : busy_) {
    for (const auto& work : stream->queue) {
      work->after.clear();
      work->behind.reset();
    }
  }
}

Device* Machine::device(int ordinal) {
  const bool exists = ordinal >= 0 && static_cast<size_t>(ordinal) < devices_.size();
  return exists ? &devices_[static_cast<size_t>(ordinal)] : nullptr;
}

std::shared_ptr<Context> Machine::new_context(int ordinal, uint64_t handle) {
  auto context = std::make_shared<Context>();
  context->id = next_handle();
  context->handle = handle != 0 ? handle : next_handle();
  context->device = ordinal;
  contexts_[context->handle] = context;
  const auto legacy = new_stream(context);
  legacy->is_legacy = true;
  legacy_streams_[context->handle] = legacy->handle;
  return context;
}

void Machine::new_primary(int ordinal) {
  Device& device = devices_[static_cast<size_t>(ordinal)];
  device.primary = new_context(ordinal, reuse_handles_ ? device.last_primary : 0);
  device.last_primary = device.primary->handle;
}

int Machine::current_device(const Thread& thread) const {
  const auto found = contexts_.find(thread.context);
  return found != contexts_.end() ? found->second->device : -1;
}

std::shared_ptr<Stream> Machine::new_stream(const std::shared_ptr<Context>& context) {
  auto stream = std::make_shared<Stream>();
  if (reuse_handles_ && !freed_streams_.empty()) {
    stream->handle = freed_streams_.back();
    freed_streams_.pop_back();
    destroyed_.erase(stream->handle);
  } else {
    stream->handle = next_handle();
  }
  stream->number = devices_[static_cast<size_t>(context->device)].streams_created++;
  stream->context = context;
  streams_[stream->handle] = stream;
  return stream;
}

Result Machine::activate(int ordinal, uint64_t* context) {
  Device* const device = this->device(ordinal);
  if (device == nullptr) return kInvalidDevice;
  if (device->primary == nullptr) new_primary(ordinal);
  device->held_by_program = true;
  *context = device->primary->handle;
  return kSuccess;
}

Result Machine::deactivate(int ordinal) {
  Device* const device = this->device(ordinal);
  if (device == nullptr) return kInvalidDevice;
  if (device->primary == nullptr) return kInvalidContext;
  device->held_by_program = false;
  device->retained = 0;
  drop_streams_of(device->primary);
  device->primary.reset();
  return kSuccess;
}

Result Machine::create_context(int ordinal, uint64_t* context) {
  if (device(ordinal) == nullptr) return kInvalidDevice;
  *context = new_context(ordinal)->handle;
  return kSuccess;
}

Result Machine::poison(uint64_t handle, int result) {
  const auto found = contexts_.find(handle);
  if (found == contexts_.end()) return kInvalidContext;
  found->second->error = result;
  return kSuccess;
}

void Machine::drop_streams_of(const std::shared_ptr<Context>& context) {
  catch_up();
  context->alive = false;
  std::erase_if(streams_, [&](const auto& entry) { return entry.second->context == context; });
  std::erase_if(streams_of_threads_,
                [&](const auto& entry) { return entry.first.first == context->handle; });
  legacy_streams_.erase(context->handle);
}

Result Machine::create_stream(uint64_t context, unsigned flags, uint64_t* stream) {
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return kInvalidContext;
  if (!found->second->alive) return kContextIsDestroyed;
  const auto created = new_stream(found->second);
  created->non_blocking = (flags & pig::cuda::kStreamNonBlocking) != 0;
  *stream = created->handle;
  return kSuccess;
}

/// What was enqueued still runs.
Result Machine::destroy_stream(Thread& thread, uint64_t handle) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  streams_.erase(stream->handle);
  destroyed_[stream->handle] = "stream";
  freed_streams_.push_back(stream->handle);
  return kSuccess;
}

Result Machine::destroy_event(uint64_t handle) {
  std::shared_ptr<Event> event;
  if (const Result result = find_event(handle, &event)) return result;
  events_.erase(handle);
  destroyed_[handle] = "event";
  return kSuccess;
}

// Handles -----------------------------------------------------------------------------------------

Result Machine::current(const Thread& thread, std::shared_ptr<Context>* context) const {
  const auto found = contexts_.find(thread.context);
  if (found == contexts_.end()) return kInvalidContext;
  if (!found->second->alive) return kContextIsDestroyed;
  *context = found->second;
  return static_cast<Result>(found->second->error);
}

Result Machine::find_stream(Thread& thread, uint64_t handle, std::shared_ptr<Stream>* stream) {
  if (handle == kNullStream || handle == kLegacyStream || handle == kPerThreadStream) {
    std::shared_ptr<Context> context;
    if (const Result result = current(thread, &context)) return result;
    if (handle == kPerThreadStream) {
      uint64_t& own = streams_of_threads_[{context->handle, thread.serial}];
      if (own == 0) own = new_stream(context)->handle;
      handle = own;
    } else {
      handle = legacy_streams_[context->handle];
    }
  }
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return invalid_handle(handle);
  *stream = found->second;
  return static_cast<Result>(found->second->context->error);
}

Result Machine::find_event(uint64_t handle, std::shared_ptr<Event>* event) {
  const auto found = events_.find(handle);
  if (found == events_.end()) return invalid_handle(handle);
  if (!found->second->context->alive) return kContextIsDestroyed;
  *event = found->second;
  return static_cast<Result>(found->second->context->error);
}

Result Machine::invalid_handle(uint64_t handle) {
  if (const auto found = destroyed_.find(handle); found != destroyed_.end())
    violations_.push_back("a call was given a destroyed " + std::string(found->second));
  return kInvalidHandle;
}

// Queues ------------------------------------------------------------------------------------------

std::shared_ptr<Work> Machine::enqueue(const std::shared_ptr<Stream>& stream, int64_t latency_ns,
                                       int64_t duration_ns) {
  Device& device = devices_[static_cast<size_t>(stream->context->device)];
  auto work = std::make_shared<Work>();
  work->device = stream->context->device;
  work->earliest_ns = device.clock.at(host_->now_ns()) + latency_ns;
  work->duration_ns = duration_ns;
  // The legacy stream and the blocking ones of its context wait for each other.
  if (!stream->non_blocking) {
    for (const auto& [handle, other] : streams_) {
      if (other == stream || other->non_blocking || other->context != stream->context) continue;
      if (!stream->is_legacy && !other->is_legacy) continue;
      if (other->last != nullptr && !other->last->ended) work->after.push_back(other->last);
    }
  }
  if (!device.hardware_queues.empty()) {
    auto& youngest = device.hardware_queues[stream->number % device.hardware_queues.size()];
    if (youngest != nullptr && !youngest->begun) work->behind = youngest;
    youngest = work;
  }
  if (stream->queue.empty()) busy_.push_back(stream);
  stream->queue.push_back(work);
  stream->last = work;
  return work;
}

/// False while it depends on what has not begun or ended yet.
bool Machine::begin_time(const Stream& stream, const Work& work, int64_t* device_ns) const {
  int64_t begin_ns = std::max(work.earliest_ns, stream.free_at_ns);
  if (work.behind != nullptr) {
    if (!work.behind->begun) return false;
    begin_ns = std::max(begin_ns, work.behind->begin_ns);
  }
  const auto clock = [&](int device) -> const DeviceClock& {
    return devices_[static_cast<size_t>(device)].clock;
  };
  for (const auto& other : work.after) {
    if (!other->ended) return false;
    const int64_t end_ns = other->device == work.device
                               ? other->end_ns
                               : clock(work.device).at(clock(other->device).host_at(other->end_ns));
    begin_ns = std::max(begin_ns, end_ns);
  }
  *device_ns = begin_ns;
  return true;
}

bool Machine::try_begin(Stream& stream, Work& work) const {
  if (work.begun) return true;
  const int64_t now_ns = devices_[static_cast<size_t>(work.device)].clock.at(host_->now_ns());
  int64_t begin_ns = 0;
  if (!begin_time(stream, work, &begin_ns) || begin_ns > now_ns) return false;
  work.begun = true;
  work.begin_ns = begin_ns;
  work.after.clear();
  work.behind.reset();
  return true;
}

/// Those of which the time has come, as the kernel does it.
void Machine::run_stamps(Work& work) {
  Device& device = devices_[static_cast<size_t>(work.device)];
  const int64_t now_ns = device.clock.at(host_->now_ns());
  for (; !work.stamps.empty(); work.stamps.pop_front()) {
    const auto& [offset_ns, stamp] = work.stamps.front();
    if (work.begin_ns + offset_ns > now_ns) return;
    const int64_t timer_ns = work.begin_ns + offset_ns + device.timer_offset_ns;
    const auto stamp_ns = static_cast<uint64_t>(timer_ns - timer_ns % device.timer_step_ns);
    const uint32_t count = ++device.stamp_counts[stamp.node];
    reinterpret_cast<uint64_t*>(stamp.ring ^ kRegisteredTag)[count & stamp.mask] =
        stamp_ns << 24 | (count & 0xFFFFFF);
  }
}

bool Machine::try_end(Work& work) const {
  const int64_t now_ns = devices_[static_cast<size_t>(work.device)].clock.at(host_->now_ns());
  if (work.endless || work.begin_ns + work.duration_ns > now_ns) return false;
  work.ended = true;
  work.end_ns = work.begin_ns + work.duration_ns;
  return true;
}

void Machine::catch_up() {
  // An end on one stream may let another go on.
  for (bool progress = true; progress;) {
    progress = false;
    for (const auto& stream : busy_) {
      while (!stream->queue.empty()) {
        const std::shared_ptr<Work> work = stream->queue.front();
        const bool had_begun = work->begun;
        if (!try_begin(*stream, *work)) break;
        if (!had_begun) progress = true;
        run_stamps(*work);
        if (!try_end(*work)) break;
        progress = true;
        stream->free_at_ns = work->end_ns;
        stream->queue.pop_front();
      }
    }
    std::erase_if(busy_, [](const auto& stream) { return stream->queue.empty(); });
  }
}

bool Machine::next_host_ns(int64_t* host_ns) {
  catch_up();
  bool found = false;
  for (const auto& stream : busy_) {
    const Work& work = *stream->queue.front();
    int64_t device_ns = 0;
    if (work.begun) {
      if (work.endless) continue;
      device_ns = work.begin_ns + work.duration_ns;
    } else if (!begin_time(*stream, work, &device_ns)) {
      continue;
    }
    const int64_t at_ns = devices_[static_cast<size_t>(work.device)].clock.host_at(device_ns);
    if (!found || at_ns < *host_ns) *host_ns = at_ns;
    found = true;
  }
  return found;
}

void Machine::run_dry() {
  for (int64_t next_ns = 0; next_host_ns(&next_ns);) host_->advance_to(next_ns);
}

/// The caller blocks: time passes until they have ended. A real driver would wait for a hang for
/// ever; this one says so.
Result Machine::wait_for(const std::vector<std::shared_ptr<Work>>& works) {
  for (const auto& work : works) {
    catch_up();
    while (!work->ended) {
      int64_t next_ns = 0;
      if (!next_host_ns(&next_ns)) return kLaunchTimeout;
      host_->advance_to(next_ns);
      catch_up();
    }
  }
  return kSuccess;
}

Result Machine::room(const Stream& stream) {
  catch_up();
  const Device& device = devices_[static_cast<size_t>(stream.context->device)];
  uint64_t entries = stream.queue.size();
  // A hardware queue is one ring of entries, whichever of its streams they are of.
  if (const size_t queues = device.hardware_queues.size(); queues != 0)
    for (const auto& other : busy_)
      if (other->handle != stream.handle && other->context->device == stream.context->device &&
          other->number % queues == stream.number % queues)
        entries += other->queue.size();
  return device.queue_depth != 0 && entries >= device.queue_depth ? kStreamFull : kSuccess;
}

Capture* Machine::blocking_capture(const Stream& legacy) const {
  for (const auto& [handle, stream] : streams_)
    if (stream->context == legacy.context && !stream->non_blocking && stream->capture != nullptr)
      return stream->capture.get();
  return nullptr;
}

Result Machine::admit(Stream& stream, bool* captured) {
  *captured = false;
  if (stream.is_legacy) {
    if (Capture* const capture = blocking_capture(stream)) {
      captures_.invalidate(*capture);
      return kCaptureImplicit;
    }
  }
  if (stream.capture == nullptr) return kSuccess;
  if (stream.capture->invalidated) return kCaptureInvalidated;
  *captured = true;
  return kSuccess;
}

Result Machine::submit(const std::shared_ptr<Stream>& stream, Node node,
                       std::function<void()>* run) {
  bool captured = false;
  if (const Result result = admit(*stream, &captured)) return result;
  if (captured) {
    stream->capture->graph.nodes.push_back(std::move(node));
    const uint64_t handle = next_handle();
    stream->has_edge_data = false;
    stream->capture->edges[handle] = std::exchange(stream->dependencies, {handle});
    return kSuccess;
  }
  if (const Result result = room(*stream)) return result;
  const auto work = enqueue(stream, 0, node.duration_ns);
  if (node.stamp) work->stamps.emplace_back(0, *node.stamp);
  *run = std::move(node.run);
  return kSuccess;
}

// The test's program ------------------------------------------------------------------------------

Result Machine::launch(Thread& thread, uint64_t handle, int64_t duration_ns) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  std::function<void()> run;
  return submit(stream, {duration_ns, {}, {}}, &run);
}

Result Machine::hang(Thread& thread, uint64_t handle) {
  std::shared_ptr<Stream> stream;
  bool captured = false;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (const Result result = admit(*stream, &captured)) return result;
  if (captured) return kCaptureUnsupported;  // a graph that hangs is of no use to a test
  if (const Result result = room(*stream)) return result;
  enqueue(stream, 0, 0)->endless = true;
  return kSuccess;
}

Result Machine::release(Thread& thread, uint64_t handle) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  catch_up();
  for (const auto& work : stream->queue) {
    if (!work->endless) continue;
    work->endless = false;
    if (work->begun) {
      const Device& device = devices_[static_cast<size_t>(work->device)];
      work->duration_ns = device.clock.at(host_->now_ns()) - work->begin_ns;
    }
    return kSuccess;
  }
  return kInvalidValue;
}

Result Machine::wait_event(Thread& thread, uint64_t stream_handle, uint64_t event_handle) {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Event> event;
  if (const Result result = find_stream(thread, stream_handle, &stream)) return result;
  if (const Result result = find_event(event_handle, &event)) return result;
  if (event->capture != nullptr && !event->capture->ended) {
    // This is how a stream joins a capture.
    if (event->capture->invalidated) return kCaptureInvalidated;
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->dependencies.clear();
    }
    if (stream->capture != event->capture) {
      // "When an invalid operation is attempted during stream capture, any associated capture
      // graphs are invalidated" (CUDA programming guide, prohibited and unhandled operations).
      captures_.invalidate(*stream->capture);
      captures_.invalidate(*event->capture);
      return kCaptureMerge;
    }
    auto& own = stream->dependencies;
    own.insert(own.end(), event->dependencies.begin(), event->dependencies.end());
    return kSuccess;
  }
  if (event->capture != nullptr) return kCapturedEvent;
  bool captured = false;
  if (const Result result = admit(*stream, &captured)) return result;
  if (captured) {
    captures_.invalidate(*stream->capture);
    return kCaptureIsolation;
  }
  catch_up();
  if (event->record == nullptr || event->record->ended) return kSuccess;
  if (const Result result = room(*stream)) return result;
  enqueue(stream, 0, 0)->after.push_back(event->record);
  return kSuccess;
}

Result Machine::begin_capture(Thread& thread, uint64_t handle, CaptureMode mode) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (stream->is_legacy) return kCaptureUnsupported;
  if (stream->capture != nullptr) return kInvalidValue;
  stream->capture = captures_.begin(thread.serial, mode, stream->handle);
  stream->dependencies.clear();
  return kSuccess;
}

Result Machine::end_capture(Thread& thread, uint64_t handle, uint64_t* graph) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return kInvalidValue;
  if (capture->origin != stream->handle) return kCaptureUnmatched;
  if (capture->mode != pig::cuda::kCaptureRelaxed && capture->thread != thread.serial)
    return kCaptureWrongThread;
  // "Failure to rejoin to the origin stream will result in failure of the overall capture
  // operation" (CUDA programming guide, cross-stream dependencies), also where only the newest
  // nodes of a stream were not joined. Those that were taken out of its set are no matter
  // (documentation of cuStreamUpdateCaptureDependencies).
  bool joined = true;
  for (const auto& [other_handle, other] : streams_) {
    if (other->capture != capture) continue;
    joined &= capture->waits_for(stream->dependencies, other->dependencies);
    other->capture.reset();
  }
  captures_.end(capture);
  if (capture->invalidated) return kCaptureInvalidated;
  if (!joined) return kCaptureUnjoined;
  capture->graph.context = stream->context->handle;
  *graph = next_handle();
  graphs_[*graph] = std::make_shared<const Graph>(std::move(capture->graph));
  return kSuccess;
}

Result Machine::begin_next_early(Thread& thread, uint64_t handle) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (stream->capture == nullptr) return kInvalidValue;
  stream->has_edge_data = true;
  return kSuccess;
}

Result Machine::graph_entries(uint64_t graph, uint64_t* entries) const {
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return kInvalidHandle;
  *entries = found->second->nodes.size();
  return kSuccess;
}

Result Machine::launch_graph(Thread& thread, uint64_t graph, uint64_t handle,
                             std::shared_ptr<const Graph>* launched) {
  std::shared_ptr<Stream> stream;
  bool captured = false;
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return kInvalidHandle;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (stream->context->handle != found->second->context) return kInvalidHandle;
  if (const Result result = admit(*stream, &captured)) return result;
  if (captured) {
    // "The child graph is cloned in this call" (cuGraphAddChildGraphNode).
    Graph& into = stream->capture->graph;
    const auto& nodes = found->second->nodes;
    into.nodes.insert(into.nodes.end(), nodes.begin(), nodes.end());
    const uint64_t node = next_handle();
    stream->capture->edges[node] = std::exchange(stream->dependencies, {node});
    return kSuccess;
  }
  if (const Result result = room(*stream)) return result;
  const auto work = enqueue(stream, 0, 0);
  for (const Node& node : found->second->nodes) {
    if (node.stamp) work->stamps.emplace_back(work->duration_ns, *node.stamp);
    work->duration_ns += node.duration_ns;
  }
  *launched = found->second;
  return kSuccess;
}

Result Machine::memset(Thread& thread, uint64_t handle, void* memory, uint64_t bytes, int value,
                       std::function<void()>* run) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  return submit(stream, {0, [=] { std::memset(memory, value, bytes); }, {}}, run);
}

Result Machine::allocate(Thread& thread, uint64_t handle, void* memory, uint64_t bytes,
                         std::function<void()>* run) {
  std::shared_ptr<Stream> stream;
  bool captured = false;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (const Result result = admit(*stream, &captured)) return result;
  const auto overwrite = [=] { std::memset(memory, 0xA5, bytes); };
  if (captured) stream->capture->graph.nodes.push_back({0, overwrite, {}});
  *run = overwrite;
  return kSuccess;
}

std::function<void()> StandIn::with(void** values) const {
  if (function == nullptr) return {};
  std::vector<std::vector<std::byte>> copies(parameters, std::vector<std::byte>(bytes));
  for (uint64_t i = 0; i < parameters; ++i) std::memcpy(copies[i].data(), values[i], bytes);
  return [function = function, copies = std::move(copies)] {
    auto own = copies;  // a kernel may write to its parameters
    std::vector<void*> addresses;
    for (auto& copy : own) addresses.push_back(copy.data());
    function(addresses.data());
  };
}

Result Machine::pending(Thread& thread, uint64_t handle, uint64_t* count) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  catch_up();
  *count = stream->queue.size();
  return kSuccess;
}

const Record* Machine::last_record(uint64_t event) const {
  const auto found = events_.find(event);
  if (found == events_.end() || found->second->record_serial == 0) return nullptr;
  return &records_[found->second->record_serial - 1];
}

}  // namespace sim
