// SPDX-License-Identifier: Apache-2.0
//
// The driver's calls of the machine; simulated_machine.cpp has what the test does, and the queues.
#include <utility>

#include "simulated_machine.h"

namespace sim {
namespace {

using pig::cuda::CaptureMode;
using pig::cuda::CaptureStatus;

constexpr unsigned kEventDisableTiming = 2;

}  // namespace

// Contexts ----------------------------------------------------------------------------------------

Result Machine::ctx_get_current(Thread& thread, uint64_t* context) {
  *context = thread.context;
  return kSuccess;
}

Result Machine::ctx_set_current(Thread& thread, uint64_t context) {
  if (context != 0) {
    const auto found = contexts_.find(context);
    if (found == contexts_.end()) return kInvalidContext;
    if (!found->second->alive) return kContextIsDestroyed;
  }
  thread.context = context;
  return kSuccess;
}

Result Machine::ctx_get_device(Thread& thread, int* ordinal) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  *ordinal = context->device;
  return kSuccess;
}

Result Machine::ctx_get_id(Thread& thread, uint64_t context, uint64_t* id) {
  const auto found = contexts_.find(context != 0 ? context : thread.context);
  if (found == contexts_.end()) return kInvalidContext;
  if (!found->second->alive) return kContextIsDestroyed;
  *id = found->second->id;
  return kSuccess;
}

Result Machine::primary_get_state(Thread&, int ordinal, unsigned* flags, int* active) {
  const Device* const device = this->device(ordinal);
  if (device == nullptr) return kInvalidDevice;
  *flags = 0;
  *active = device->primary != nullptr;
  return kSuccess;
}

Result Machine::primary_retain(Thread&, uint64_t* context, int ordinal) {
  Device* const device = this->device(ordinal);
  if (device == nullptr) return kInvalidDevice;
  if (device->primary == nullptr) {
    violations_.push_back("cuDevicePrimaryCtxRetain made a context on device " +
                          std::to_string(ordinal));
    new_primary(ordinal);
  }
  ++device->retained;
  *context = device->primary->handle;
  return kSuccess;
}

Result Machine::primary_release(Thread&, int ordinal) {
  Device* const device = this->device(ordinal);
  if (device == nullptr) return kInvalidDevice;
  if (device->retained == 0) {
    violations_.push_back("cuDevicePrimaryCtxRelease released what it had not retained on device " +
                          std::to_string(ordinal));
    return kInvalidContext;
  }
  if (--device->retained == 0 && !device->held_by_program) {
    drop_streams_of(device->primary);
    device->primary.reset();
  }
  return kSuccess;
}

// Streams and events ------------------------------------------------------------------------------

Result Machine::stream_create(Thread& thread, uint64_t* stream, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  return create_stream(context->handle, flags, stream);
}

Result Machine::stream_is_capturing(Thread& thread, uint64_t handle, CaptureStatus* status) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  // Asking does no harm, unlike using the legacy stream.
  if (stream->is_legacy && blocking_capture(*stream) != nullptr) return kCaptureImplicit;
  *status = stream->capture == nullptr     ? pig::cuda::kNotCapturing
            : stream->capture->invalidated ? pig::cuda::kCaptureInvalidated
                                           : pig::cuda::kCapturing;
  return kSuccess;
}

Result Machine::stream_get_capture_info(Thread& thread, uint64_t handle, CaptureStatus* status,
                                        uint64_t* id, uint64_t*,
                                        const pig::cuda::GraphNode** dependencies, size_t* count) {
  if (const Result result = stream_is_capturing(thread, handle, status)) return result;
  if (*status != pig::cuda::kCapturing) return kSuccess;
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  // "If dependencies_out is non-NULL and edgeData_out is NULL, but there is non-zero edge data for
  // one or more of the current stream dependencies, the call will return CUDA_ERROR_LOSSY_QUERY."
  if (stream->has_edge_data) return kLossyQuery;
  *id = stream->capture->id;
  *dependencies = reinterpret_cast<const pig::cuda::GraphNode*>(stream->dependencies.data());
  *count = stream->dependencies.size();
  return kSuccess;
}

Result Machine::stream_update_dependencies(Thread& thread, uint64_t handle,
                                           const pig::cuda::GraphNode* dependencies, size_t count,
                                           unsigned flags) {
  std::shared_ptr<Stream> stream;
  bool captured = false;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (const Result result = admit(*stream, &captured)) return result;
  if (!captured || flags != pig::cuda::kSetDependencies) return kInvalidValue;  // all that is used
  const auto* const nodes = reinterpret_cast<const uint64_t*>(dependencies);
  for (size_t i = 0; i < count; ++i)
    if (!stream->capture->edges.contains(nodes[i])) return kInvalidValue;
  stream->dependencies = {nodes, nodes + count};
  return kSuccess;
}

Result Machine::exchange_capture_mode(Thread& thread, CaptureMode* mode) {
  if (*mode < pig::cuda::kCaptureGlobal || *mode > pig::cuda::kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, thread.capture_mode);
  return kSuccess;
}

Result Machine::event_create(Thread& thread, uint64_t* handle, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  auto event = std::make_shared<Event>();
  event->handle = next_handle();
  event->context = context;
  event->has_timing = (flags & kEventDisableTiming) == 0;
  events_[event->handle] = event;
  *handle = event->handle;
  return kSuccess;
}

Result Machine::event_record(Thread& thread, uint64_t event_handle, uint64_t stream_handle) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Event> event;
  if (const Result result = current(thread, &context)) return result;
  if (const Result result = find_event(event_handle, &event)) return result;
  if (const Result result = find_stream(thread, stream_handle, &stream)) return result;
  if (stream->context != event->context) return kInvalidHandle;
  bool captured = false;
  if (const Result result = admit(*stream, &captured)) return result;
  if (captured) {
    event->capture = stream->capture;
    event->dependencies = stream->dependencies;
    stream->capture->graph.nodes.emplace_back();
    return kSuccess;
  }
  if (const Result result = room(*stream)) return result;
  Device& device = devices_[static_cast<size_t>(stream->context->device)];
  int64_t latency_ns = device.record_latency_min_ns;
  const int64_t range_ns = device.record_latency_max_ns - device.record_latency_min_ns;
  // Not a standard distribution: those differ between libraries.
  if (range_ns > 0)
    latency_ns += static_cast<int64_t>(device.random() % static_cast<uint64_t>(range_ns + 1));
  event->capture.reset();
  event->is_known = false;
  event->record = enqueue(stream, latency_ns, device.record_ns);
  records_.push_back({event_handle, stream_handle, thread.system_id, host_->now_ns(),
                      stream->context->device, event->record});
  event->record_serial = records_.size();
  return kSuccess;
}

Result Machine::event_query(Thread& thread, uint64_t handle) {
  std::shared_ptr<Event> event;
  if (const Result result = find_event(handle, &event)) return result;
  if (event->capture != nullptr) {
    captures_.invalidate(*event->capture);
    return kCapturedEvent;
  }
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  if (event->record == nullptr) return kSuccess;
  catch_up();
  event->is_known = event->record->ended;
  return event->is_known ? kSuccess : kNotReady;
}

Result Machine::event_elapsed(Thread& thread, float* milliseconds, uint64_t begin_handle,
                              uint64_t end_handle) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Event> begin, end;
  if (const Result result = current(thread, &context)) return result;
  if (const Result result = find_event(begin_handle, &begin)) return result;
  if (const Result result = find_event(end_handle, &end)) return result;
  for (const auto& event : {begin, end}) {
    if (!event->has_timing) return kInvalidHandle;
    if (event->capture != nullptr) {
      captures_.invalidate(*event->capture);
      return kCapturedEvent;
    }
    if (event->record == nullptr) return kInvalidHandle;
  }
  if (begin->context != end->context) return kInvalidHandle;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  catch_up();
  if (!begin->record->ended || !end->record->ended) return kNotReady;
  const Device& device = devices_[static_cast<size_t>(begin->context->device)];
  const int64_t elapsed_ns = device.elapsed_ns(device.stamp_ns(end->record->end_ns) -
                                               device.stamp_ns(begin->record->end_ns));
  *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) / 1e6);
  return kSuccess;
}

/// Neither reports the errors of earlier work nor finds out whether that is complete: "this API is
/// intended to serve as an elapsed time calculation only and any polling for completion on the
/// events to be compared should be done with cuEventQuery instead" (its documentation).
Result Machine::event_elapsed_v2(Thread& thread, float* milliseconds, uint64_t begin,
                                 uint64_t end) {
  const auto found = contexts_.find(thread.context);
  const int error = found != contexts_.end() ? std::exchange(found->second->error, 0) : 0;
  Result result = event_elapsed(thread, milliseconds, begin, end);
  const auto is_known = [&](uint64_t event) {
    return elapsed_v2_polls || events_[event]->is_known;
  };
  if (result == kSuccess && !(is_known(begin) && is_known(end))) result = kNotReady;
  if (found != contexts_.end()) found->second->error = error;
  return result;
}

// Calls that block --------------------------------------------------------------------------------

Result Machine::ctx_synchronize(Thread& thread) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  std::vector<std::shared_ptr<Work>> works;
  for (const auto& [handle, stream] : streams_) {
    if (stream->context != context) continue;
    if (stream->capture != nullptr) {
      captures_.invalidate(*stream->capture);
      return kCaptureUnsupported;
    }
    if (stream->last != nullptr) works.push_back(stream->last);
  }
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  return wait_for(works);
}

Result Machine::stream_synchronize(Thread& thread, uint64_t handle) {
  std::shared_ptr<Stream> stream;
  if (const Result result = find_stream(thread, handle, &stream)) return result;
  if (stream->capture != nullptr) {
    captures_.invalidate(*stream->capture);
    return kCaptureUnsupported;
  }
  bool captured = false;
  if (const Result result = admit(*stream, &captured)) return result;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  if (stream->last == nullptr) return kSuccess;
  return wait_for({stream->last});
}

Result Machine::event_synchronize(Thread& thread, uint64_t handle) {
  const Result result = event_query(thread, handle);
  return result == kNotReady ? wait_for({events_[handle]->record}) : result;
}

// Kernels and memory ------------------------------------------------------------------------------

Result Machine::device_attribute(Thread&, int* value, int attribute, int ordinal) {
  const Device* const device = this->device(ordinal);
  if (device == nullptr) return kInvalidDevice;
  const auto found = device->attributes.find(attribute);
  if (found == device->attributes.end()) return kInvalidValue;
  *value = found->second;
  return kSuccess;
}

Result Machine::library_load(Thread& thread, uint64_t* library, const void* code) {
  // A library belongs to no context, but an error of the current one, if any, is returned.
  std::shared_ptr<Context> context;
  const Result current_result = current(thread, &context);
  if (context != nullptr && current_result != kSuccess) return current_result;
  if (code == nullptr) return kInvalidValue;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  *library = next_handle();
  libraries_[*library] = {};
  return kSuccess;
}

/// Every name is one of a kernel: the code is not looked at.
Result Machine::library_get_kernel(Thread&, uint64_t* kernel, uint64_t library, const char* name) {
  const auto found = libraries_.find(library);
  if (found == libraries_.end()) return kInvalidHandle;
  uint64_t& handle = found->second[name];
  if (handle == 0) {
    handle = next_handle();
    kernels_[handle] = {name, library};
  }
  *kernel = handle;
  return kSuccess;
}

Result Machine::library_unload(Thread& thread, uint64_t library) {
  if (!libraries_.contains(library)) return kInvalidHandle;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  libraries_.erase(library);
  std::erase_if(kernels_, [&](const auto& entry) { return entry.second.library == library; });
  return kSuccess;
}

/// Loads the kernel into the current context: unsafe during a capture.
Result Machine::kernel_get_function(Thread& thread, uint64_t* function, uint64_t kernel) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  if (!kernels_.contains(kernel)) return kInvalidHandle;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  kernels_[kernel].contexts.insert(context->handle);
  *function = kernel;
  return kSuccess;
}

Result Machine::launch_kernel(Thread& thread, uint64_t kernel, const Launch& launch,
                              void** parameters, std::function<void()>* run) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const Result result = current(thread, &context)) return result;
  const auto found = kernels_.find(kernel);
  if (found == kernels_.end()) return kInvalidHandle;
  if (const Result result = find_stream(thread, launch.stream, &stream)) return result;
  if (stream->context != context) return kInvalidHandle;
  for (int axis = 0; axis < 3; ++axis)
    if (launch.grid[axis] == 0 || launch.block[axis] == 0) return kInvalidValue;
  const std::string& name = found->second.name;
  const auto duration = kernel_ns_.find(name);
  const auto stand_in = stand_ins_.find(name);
  Node node;
  if (duration != kernel_ns_.end()) node.duration_ns = duration->second;
  if (stand_in != stand_ins_.end()) node.run = stand_in->second.with(parameters);
  if (name == "pig_stamp")
    node.stamp = {*static_cast<uint64_t*>(parameters[0]), *static_cast<uint32_t*>(parameters[1]),
                  *static_cast<uint32_t*>(parameters[2])};
  if (const Result result = submit(stream, std::move(node), run)) return result;
  // "Loading kernels might require context synchronization" (CUDA programming guide, lazy loading,
  // concurrent execution), which a capture forbids.
  const bool is_new = found->second.contexts.insert(context->handle).second;
  if (is_new && stream->capture != nullptr)
    violations_.push_back("the first launch of the kernel " + name + " was in a capture");
  if (stream->capture != nullptr) return kSuccess;
  launches_.push_back(launch);
  launches_.back().kernel = name;
  launches_.back().thread = thread.system_id;
  launches_.back().host_ns = host_->now_ns();
  return kSuccess;
}

Result Machine::host_alloc(Thread& thread, void** pointer, size_t bytes, unsigned) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  if (bytes == 0) return kInvalidValue;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  auto memory = std::make_unique<std::byte[]>(bytes);
  *pointer = memory.get();
  host_memory_[*pointer] = std::move(memory);
  host_sizes_[*pointer] = bytes;
  host_bytes_ += bytes;
  return kSuccess;
}

Result Machine::host_register(Thread& thread, void* memory, size_t bytes, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  if (bytes == 0 || host_sizes_.contains(memory)) return kInvalidValue;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  host_sizes_[memory] = bytes;
  host_bytes_ += bytes;
  // CU_MEMHOSTREGISTER_DEVICEMAP: "maps the host allocation into the CUDA address space".
  if ((flags & pig::cuda::kHostAllocMapped) != 0) registered_.insert(memory);
  return kSuccess;
}

Result Machine::host_device_pointer(Thread& thread, uint64_t* device_pointer, void* pointer,
                                    unsigned) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  auto next = host_sizes_.upper_bound(pointer);
  if (next == host_sizes_.begin()) return kInvalidValue;
  const auto& [begin, bytes] = *--next;
  if (static_cast<std::byte*>(pointer) >= static_cast<std::byte*>(begin) + bytes)
    return kInvalidValue;
  const bool is_registered = registered_.contains(begin);
  if (!is_registered && !host_memory_.contains(begin)) return kInvalidValue;
  *device_pointer = reinterpret_cast<uint64_t>(pointer) ^ (is_registered ? kRegisteredTag : 0);
  return kSuccess;
}

Result Machine::host_free(Thread& thread, void* pointer) {
  std::shared_ptr<Context> context;
  if (const Result result = current(thread, &context)) return result;
  if (!host_memory_.contains(pointer)) return kInvalidValue;
  if (!captures_.permit_unsafe_call(thread.serial, thread.capture_mode)) return kCaptureUnsupported;
  host_bytes_ -= host_sizes_[pointer];
  host_memory_.erase(pointer);
  host_sizes_.erase(pointer);
  return kSuccess;
}

}  // namespace sim
