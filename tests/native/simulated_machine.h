// SPDX-License-Identifier: Apache-2.0
//
// Devices, contexts, streams and events as the driver has them, on a virtual clock.
//
// A stream is a queue. Nothing runs: `catch_up` works out which entries have begun and ended by
// now, on their device's clock, and stops at the first that has not. So hours cost what their work
// costs, and a change of a clock's rate reaches all that has not ended yet.
//
// One thread at a time. What enqueues answers kStreamFull, and has done nothing, while its stream
// has no room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "simulated_capture.h"
#include "simulated_clock.h"
#include "simulated_result.h"
#include "simulated_stream.h"

namespace sim {

/// What the driver keeps for each thread of the process.
struct Thread {
  uint64_t serial = 0;     ///< never used twice, unlike the kernel's id
  uint64_t system_id = 0;  ///< the kernel's
  uint64_t context = 0;
  pig::cuda::CaptureMode capture_mode = pig::cuda::kCaptureGlobal;
};

struct Device {
  DeviceClock clock;
  int64_t tick_ns = 32;
  int64_t record_latency_min_ns = 0;
  int64_t record_latency_max_ns = 0;
  int64_t record_ns = 0;  ///< that the record of an event takes
  std::mt19937_64 random;
  uint64_t queue_depth = 0;  ///< entries that fit into a stream; 0 is any number
  int64_t elapsed_resolution_ns = 1;
  /// What a kernel reads as %globaltimer: another zero than that of events, and steps of its own.
  int64_t timer_offset_ns = 1'700'000'000'000'000'123;
  int64_t timer_step_ns = 32;
  std::map<uint32_t, uint32_t> stamp_counts;
  /// The youngest entry of each hardware queue. Empty: each stream has one for itself.
  std::vector<std::shared_ptr<Work>> hardware_queues;
  uint64_t streams_created = 0;

  std::shared_ptr<Context> primary;
  uint64_t last_primary = 0;  ///< the handle of the one before
  bool held_by_program = false;
  int64_t retained = 0;
  std::map<int, int> attributes;

  /// What an event that took place then has written down.
  int64_t stamp_ns(int64_t device_ns) const {
    const int64_t rest = device_ns % tick_ns;
    return device_ns - (rest < 0 ? rest + tick_ns : rest);
  }

  /// What cuEventElapsedTime says of the time between two stamps: the nearest multiple.
  int64_t elapsed_ns(int64_t stamps_ns) const {
    const int64_t half_ns = stamps_ns < 0 ? -elapsed_resolution_ns / 2 : elapsed_resolution_ns / 2;
    return (stamps_ns + half_ns) / elapsed_resolution_ns * elapsed_resolution_ns;
  }
};

/// One successful cuEventRecord outside a capture, and the truth about it.
struct Record {
  uint64_t event;
  uint64_t stream;
  uint64_t thread;
  int64_t host_ns;  ///< when the call was made
  int device;
  std::shared_ptr<Work> work;
};

struct Launch {
  std::string kernel;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  uint64_t stream;
  uint64_t thread;
  int64_t host_ns;
};

struct Kernel {
  std::string name;
  uint64_t library;
  std::set<uint64_t> contexts{};  ///< that it is loaded into
};

/// What tells the device's address of registered memory from the host's: nobody may take one for
/// the other, as where CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0.
constexpr uint64_t kRegisteredTag = uint64_t{1} << 60;

/// Runs in a kernel's place, on the thread that launches it or its graph.
struct StandIn {
  void (*function)(void** parameters) = nullptr;
  uint64_t parameters = 0;  ///< how many
  uint64_t bytes = 0;       ///< of each
  /// The same with the parameters as they are now.
  std::function<void()> with(void** values) const;
};

class Machine {
 public:
  Machine(HostClock& host, int devices);
  Machine(Machine&&) = default;
  Machine& operator=(Machine&&) = default;
  ~Machine() { unlink_work(); }

  /// All as new. Handles are not used twice, unless the test says so: those of before stay invalid.
  void reset(int devices);

  // What the test does, beside the calls below that share their name with the driver's.
  Device* device(int ordinal);
  Result activate(int ordinal, uint64_t* context);
  Result deactivate(int ordinal);
  Result create_context(int ordinal, uint64_t* context);
  /// The context has an error that sticks: whatever touches it answers so until it is destroyed.
  Result poison(uint64_t context, int result);
  Result create_stream(uint64_t context, unsigned flags, uint64_t* stream);
  Result destroy_stream(Thread& thread, uint64_t stream);
  Result destroy_event(uint64_t event);
  void reuse_handles(bool reuse) { reuse_handles_ = reuse; }
  Result launch(Thread& thread, uint64_t stream, int64_t duration_ns);
  Result hang(Thread& thread, uint64_t stream);
  Result release(Thread& thread, uint64_t stream);
  Result wait_event(Thread& thread, uint64_t stream, uint64_t event);
  Result begin_capture(Thread& thread, uint64_t stream, pig::cuda::CaptureMode mode);
  Result end_capture(Thread& thread, uint64_t stream, uint64_t* graph);
  /// The next node may begin when those before it say so (programmatic dependent launch).
  Result begin_next_early(Thread& thread, uint64_t stream);
  Result graph_entries(uint64_t graph, uint64_t* entries) const;
  /// What it does is left to the caller: `*launched` is to be run without the mutex.
  Result launch_graph(Thread& thread, uint64_t graph, uint64_t stream,
                      std::shared_ptr<const Graph>* launched);
  /// Likewise.
  Result memset(Thread& thread, uint64_t stream, void* memory, uint64_t bytes, int value,
                std::function<void()>* run);
  /// The memory of an allocation in a stream's order holds what was there before: `*run` overwrites
  /// it, now and at each launch of the graph that it is captured into.
  Result allocate(Thread& thread, uint64_t stream, void* memory, uint64_t bytes,
                  std::function<void()>* run);
  Result pending(Thread& thread, uint64_t stream, uint64_t* count);
  /// The host time at which the next entry begins or ends; false when none ever will.
  bool next_host_ns(int64_t* host_ns);
  /// Moves the clock until all that can end has ended.
  void run_dry();

  /// That of the thread's context; -1 where it has none.
  int current_device(const Thread& thread) const;
  uint64_t captures_invalidated() const { return captures_.invalidated(); }
  const std::vector<std::string>& violations() const { return violations_; }
  void add_violation(std::string text) { violations_.push_back(std::move(text)); }
  const std::vector<Launch>& launches() const { return launches_; }
  std::vector<Record>& records() { return records_; }
  const Record* last_record(uint64_t event) const;
  void set_stand_in(const std::string& kernel, StandIn stand_in) { stand_ins_[kernel] = stand_in; }
  void set_kernel_duration(const std::string& name, int64_t ns) { kernel_ns_[name] = ns; }
  uint64_t host_bytes() const { return host_bytes_; }
  void catch_up();

  int driver_version = 13000;
  bool elapsed_v2_polls = false;  ///< cuEventElapsedTime_v2 knows of events that nobody has queried

  // The driver's calls.
  Result ctx_get_current(Thread& thread, uint64_t* context);
  Result ctx_set_current(Thread& thread, uint64_t context);
  Result ctx_get_device(Thread& thread, int* ordinal);
  Result ctx_get_id(Thread& thread, uint64_t context, uint64_t* id);
  Result primary_get_state(Thread& thread, int ordinal, unsigned* flags, int* active);
  Result primary_retain(Thread& thread, uint64_t* context, int ordinal);
  Result primary_release(Thread& thread, int ordinal);
  Result stream_create(Thread& thread, uint64_t* stream, unsigned flags);
  Result stream_is_capturing(Thread& thread, uint64_t stream, pig::cuda::CaptureStatus* status);
  Result stream_get_capture_info(Thread& thread, uint64_t stream, pig::cuda::CaptureStatus* status,
                                 uint64_t* id, uint64_t* graph,
                                 const pig::cuda::GraphNode** dependencies, size_t* count);
  Result stream_update_dependencies(Thread& thread, uint64_t stream,
                                    const pig::cuda::GraphNode* dependencies, size_t count,
                                    unsigned flags);
  Result exchange_capture_mode(Thread& thread, pig::cuda::CaptureMode* mode);
  Result event_create(Thread& thread, uint64_t* event, unsigned flags);
  Result event_record(Thread& thread, uint64_t event, uint64_t stream);
  Result event_query(Thread& thread, uint64_t event);
  Result event_elapsed(Thread& thread, float* milliseconds, uint64_t begin, uint64_t end);
  Result event_elapsed_v2(Thread& thread, float* milliseconds, uint64_t begin, uint64_t end);
  Result ctx_synchronize(Thread& thread);
  Result stream_synchronize(Thread& thread, uint64_t stream);
  Result event_synchronize(Thread& thread, uint64_t event);
  Result device_attribute(Thread& thread, int* value, int attribute, int ordinal);
  Result library_load(Thread& thread, uint64_t* library, const void* code);
  Result library_get_kernel(Thread& thread, uint64_t* kernel, uint64_t library, const char* name);
  Result library_unload(Thread& thread, uint64_t library);
  Result kernel_get_function(Thread& thread, uint64_t* function, uint64_t kernel);
  /// `*run` is what the kernel does, and empty inside a capture. To be run without the mutex.
  Result launch_kernel(Thread& thread, uint64_t kernel, const Launch& launch, void** parameters,
                       std::function<void()>* run);
  Result host_alloc(Thread& thread, void** pointer, size_t bytes, unsigned flags);
  Result host_device_pointer(Thread& thread, uint64_t* device_pointer, void* pointer,
                             unsigned flags);
  Result host_register(Thread& thread, void* memory, size_t bytes, unsigned flags);
  Result host_free(Thread& thread, void* pointer);

 private:
  Result current(const Thread& thread, std::shared_ptr<Context>* context) const;
  std::shared_ptr<Context> new_context(int ordinal, uint64_t handle = 0);
  void new_primary(int ordinal);
  std::shared_ptr<Stream> new_stream(const std::shared_ptr<Context>& context);
  Result find_stream(Thread& thread, uint64_t handle, std::shared_ptr<Stream>* stream);
  Result find_event(uint64_t handle, std::shared_ptr<Event>* event);
  /// A handle that leads nowhere. One of something destroyed is memory that was freed, and the real
  /// driver may crash.
  Result invalid_handle(uint64_t handle);
  /// Whether a stream takes work: `*captured` when into a graph, and not to be run. The caller adds
  /// the node.
  Result admit(Stream& stream, bool* captured);
  /// Before anything of an enqueue is done: kStreamFull if it has to wait.
  Result room(const Stream& stream);
  /// Enqueues a node, whose `*run` is left to the caller, or adds it to the graph that the stream
  /// is captured into.
  Result submit(const std::shared_ptr<Stream>& stream, Node node, std::function<void()>* run);
  Capture* blocking_capture(const Stream& legacy) const;
  std::shared_ptr<Work> enqueue(const std::shared_ptr<Stream>& stream, int64_t latency_ns,
                                int64_t duration_ns);
  bool try_begin(Stream& stream, Work& work) const;
  bool try_end(Work& work) const;
  void run_stamps(Work& work);
  bool begin_time(const Stream& stream, const Work& work, int64_t* device_ns) const;
  Result wait_for(const std::vector<std::shared_ptr<Work>>& works);
  void drop_streams_of(const std::shared_ptr<Context>& context);
  void unlink_work();
  uint64_t next_handle() { return handle_ += 0x100; }

  HostClock* host_;
  uint64_t handle_ = 0x100000;
  std::vector<Device> devices_;
  std::unordered_map<uint64_t, std::shared_ptr<Context>> contexts_;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;
  std::unordered_map<uint64_t, uint64_t> legacy_streams_;                 ///< by context
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> streams_of_threads_;  ///< by context and thread
  std::vector<std::shared_ptr<Stream>> busy_;  ///< have entries that have not ended
  std::unordered_map<uint64_t, std::shared_ptr<Event>> events_;
  std::map<uint64_t, const char*> destroyed_;  ///< what a handle was once
  std::vector<uint64_t> freed_streams_;
  bool reuse_handles_ = false;
  Captures captures_;
  std::unordered_map<uint64_t, std::shared_ptr<const Graph>> graphs_;
  std::vector<Record> records_;
  std::vector<std::string> violations_;

  std::unordered_map<uint64_t, std::map<std::string, uint64_t>> libraries_;  ///< kernels by name
  std::unordered_map<uint64_t, Kernel> kernels_;
  std::map<std::string, StandIn> stand_ins_;
  std::map<std::string, int64_t> kernel_ns_;
  std::vector<Launch> launches_;
  std::map<void*, std::unique_ptr<std::byte[]>> host_memory_;
  std::map<void*, size_t> host_sizes_;
  std::set<void*> registered_;  ///< of these: memory of the program's
  /// What was not freed before a reset: whoever still uses it does no harm.
  std::vector<std::unique_ptr<std::byte[]>> left_memory_;
  uint64_t host_bytes_ = 0;
};

}  // namespace sim
