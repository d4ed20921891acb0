// SPDX-License-Identifier: Apache-2.0
#include "cuda/graph_stamps.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/graph_stamp_ptx.h"

namespace pig::cuda {
namespace {

constexpr uint64_t kCountBits = 24;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr uint64_t kTimerMask = (uint64_t{1} << GraphStamps::kTimerBits) - 1;

constexpr int64_t kCompareNs = 10'000'000'000;
/// Where streams share hardware queues: still often enough for 40 bits of ns to be unambiguous.
constexpr int64_t kSparingCompareNs = 240'000'000'000;
/// A clock with longer steps says little about phases.
constexpr uint64_t kMaxTimerStepNs = 2'000;

/// A number of some bits as the nearest one to 0.
constexpr int64_t nearest(uint64_t value, uint64_t bits) {
  return static_cast<int64_t>(value << (64 - bits)) >> (64 - bits);
}

uint64_t word_of(const uint64_t* ring, uint64_t run) {
  return __atomic_load_n(ring + run % GraphStamps::kRuns, __ATOMIC_ACQUIRE);
}
/// By how much the run that a word is of is later than this one.
int64_t later_by(uint64_t word, uint64_t run) {
  return nearest((word & kCountMask) - run, kCountBits);
}

}  // namespace

bool GraphStamps::prepare(uint32_t nodes) {
  const std::lock_guard preparing(preparing_);
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return false;
  }
  if (kernel_ == nullptr && !load()) return false;
  const auto is_short = [this, nodes] {
    const std::lock_guard lock(mutex_);
    return room_ < std::min<size_t>(nodes_.size() + nodes, kNodes);
  };
  while (is_short())
    if (!allocate()) return is_ready();  // what there is still serves
  is_ready_.store(true, std::memory_order_release);
  return true;
}

bool GraphStamps::load() {
#define PIG_IS_MISSING(name, parameters) || driver_.name == nullptr
  if (false PIG_CUDA_KERNEL_FUNCTIONS(PIG_IS_MISSING) PIG_CUDA_GRAPH_FUNCTIONS(PIG_IS_MISSING)) {
    fail("the CUDA driver lacks functions that this needs");
    return false;
  }
#undef PIG_IS_MISSING
  Library library = nullptr;
  if (const int result = driver_.LibraryLoadData(&library, kGraphStampPtx, nullptr, nullptr, 0,
                                                 nullptr, nullptr, 0))
    return refuse("cuLibraryLoadData", result);
  Kernel kernel = nullptr;
  if (const int result = driver_.LibraryGetKernel(&kernel, library, "pig_stamp"))
    return refuse("cuLibraryGetKernel", result);
  // Drivers put the loading into the context off until the first launch, which is in a capture.
  Function function = nullptr;
  if (const int result = driver_.KernelGetFunction(&function, kernel))
    return refuse("cuKernelGetFunction", result);
  kernel_ = kernel;
  return true;
}

bool GraphStamps::allocate() {
  constexpr size_t kBytes = size_t{kChunkNodes} * kRuns * sizeof(uint64_t);
  Chunk chunk;
  // Our own, and not the driver's, which is gone when the device is reset. It is zero.
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  madvise(memory, kBytes, MADV_DONTFORK);  // a copy of it would leave the device with the wrong one
  int result = driver_.MemHostRegister(memory, kBytes, kHostAllocPortable | kHostAllocMapped);
  if (result != kSuccess) {
    munmap(memory, kBytes);
    return refuse("cuMemHostRegister", result);
  }
  result = driver_.MemHostGetDevicePointer(&chunk.device, memory, 0);
  if (result != kSuccess) return refuse("cuMemHostGetDevicePointer", result);
  chunk.host = static_cast<uint64_t*>(memory);
  const std::lock_guard lock(mutex_);
  chunks_[room_ / kChunkNodes] = chunk;
  room_ += kChunkNodes;
  return true;
}

bool GraphStamps::refuse(const char* call, int result) {
  // Where some nodes have memory, only further ones are refused.
  if (!is_ready()) fail(std::string(call) + " answered " + driver_.describe(result));
  return false;
}

void GraphStamps::fail(std::string reason) {
  is_ready_.store(false, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = std::move(reason);
}

std::string GraphStamps::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int GraphStamps::launch(uint32_t node, Stream stream) const {
  DevicePointer ring =
      chunks_[node / kChunkNodes].device + uint64_t{node % kChunkNodes} * kRuns * sizeof(uint64_t);
  uint32_t mask = kRuns - 1;
  void* parameters[] = {&ring, &node, &mask};
  return driver_.LaunchKernel(kernel_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

std::optional<GraphStamps::Place> GraphStamps::place_of(Stream stream) const {
  CaptureStatus status = kNotCapturing;
  uint64_t id = 0;
  Graph graph = nullptr;
  const GraphNode* dependencies = nullptr;
  size_t count = 0;
  // The variant of 12.0, which answers LOSSY_QUERY where the next node may begin before the ones it
  // waits for have ended. That is well: a stamp there would end before them, and what the next
  // kernel then waited for were the stamp.
  const int result =
      driver_.StreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, &count);
  if (result != kSuccess || status != kCapturing) return std::nullopt;
  return Place{id, {dependencies, dependencies + count}};  // they last until the next call
}

uint64_t GraphStamps::capture_of(Stream stream) const {
  std::optional<Place> place;
  return try_allocating([&] { place = place_of(stream); }) && place ? place->capture : 0;
}

uint64_t GraphStamps::capture_begins(Stream stream) {
  const uint64_t capture = capture_of(stream);
  if (capture == 0) return 0;
  const std::lock_guard lock(mutex_);
  newest_capture_ = {capture, stream};
  return capture;
}

uint32_t GraphStamps::stamp(Stream stream, uint32_t stream_index, uint32_t last, uint32_t most,
                            bool begins, Drop& cause) noexcept {
  cause = Drop::kDeviceCapturing;
  if (!is_ready()) return 0;
  std::optional<Place> place;
  Node node;
  uint32_t number = 0;
  bool is_origin = false;
  const bool fits = try_allocating([&] {
    place = place_of(stream);
    if (!place) return;
    const std::lock_guard lock(mutex_);
    // Of an unknown capture any stream may be a joined one.
    is_origin = newest_capture_ == std::pair(place->capture, stream) && !is_per_thread(stream);
    node = nodes_[last];
    if (last != 0 && node.capture == place->capture && node.stream == stream_index &&
        !node.self.empty() &&
        (place->after == node.self || (!is_origin && place->after == node.before))) {
      number = last;
      return;
    }
    last = 0;
    const auto found = nodes_of_capture_.find(place->capture);
    if ((found != nodes_of_capture_.end() ? found->second : 0) >= most || nodes_.size() >= room_) {
      cause = Drop::kDeviceGraphNodes;
      return;
    }
    node = {place->capture, stream_index, place->after, {}};
    // Only of captures that have one: there are no more of them than nodes.
    uint32_t& used = nodes_of_capture_[place->capture];
    nodes_.push_back(node);
    number = static_cast<uint32_t>(nodes_.size() - 1);
    ++used;
  });
  if (!fits || number == 0) return 0;
  if (number != last) {
    if (const int result = launch(number, stream)) {
      // A capture that has become invalid is the program's. Anything else would go on.
      if (!is_capture_code(result))
        try_allocating([&] { fail("cuLaunchKernel answered " + driver_.describe(result)); });
      return 0;
    }
    try_allocating([&] {
      place = place_of(stream);
      if (!place || place->after.size() != 1) return;
      node.self = place->after;
      const std::lock_guard lock(mutex_);
      nodes_[number].self = node.self;
    });
  }
  const std::vector<GraphNode>& after = begins ? node.self : node.before;
  if (is_origin || !place || place->after == after || (begins && after.empty())) return number;
  const int result =
      driver_.StreamUpdateCaptureDependencies(stream, after.data(), after.size(), kSetDependencies);
  if (result != kSuccess && !is_capture_code(result))
    try_allocating(
        [&] { fail("cuStreamUpdateCaptureDependencies answered " + driver_.describe(result)); });
  return number;
}

GraphStamps::Node GraphStamps::node(uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return number < nodes_.size() ? nodes_[number] : Node{};
}

uint32_t GraphStamps::nodes_of(uint64_t capture) const {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_of_capture_.find(capture);
  return found != nodes_of_capture_.end() ? found->second : 0;
}

uint64_t GraphStamps::newest_run(uint32_t node, uint64_t from) const {
  const uint64_t* const ring = this->ring(node);
  for (uint64_t run = from + 1;; ++run) {
    const int64_t later = later_by(word_of(ring, run), run);
    if (later < 0) return run - 1;
    run += static_cast<uint64_t>(later);  // those before it have been overwritten
  }
}

std::optional<uint64_t> GraphStamps::timer_ns(uint32_t node, uint64_t run) const {
  const uint64_t word = word_of(ring(node), run);
  if (later_by(word, run) != 0) return std::nullopt;
  return word >> kCountBits;
}

// Comparison of the clocks ------------------------------------------------------------------------

void GraphStamps::restart() {
  const std::lock_guard lock(mutex_);
  comparison_.reset();
  is_comparing_ = false;
  compare_due_ns_ = 0;
}

DriverError GraphStamps::compare(DeviceClock& clock, int64_t now_ns, bool sparing) {
  if (!is_ready()) return {};
  if (is_comparing_) {
    const DriverError error{"cuEventQuery", driver_.EventQuery(events_.back())};
    if (error.result == kNotReady) return {};
    if (error) return error;
    is_comparing_ = false;
    return finish_comparison(clock, now_ns);
  }
  if (now_ns < compare_due_ns_) return {};
  while (events_.size() <= kStamps) {
    Event event = nullptr;
    if (const DriverError error = clock.make_event(event, /*record=*/false)) return error;
    events_.push_back(event);
  }
  for (uint32_t i = 0; i <= kStamps; ++i) {
    if (i != 0) {
      if (const int result = launch(0, clock.stream())) return {"cuLaunchKernel", result};
      ++compared_runs_;
    }
    if (const int result = driver_.EventRecord(events_[i], clock.stream()))
      return {"cuEventRecord", result};
  }
  is_comparing_ = true;
  compare_due_ns_ = now_ns + (sparing ? kSparingCompareNs : kCompareNs);
  return {};
}

DriverError GraphStamps::finish_comparison(DeviceClock& clock, int64_t now_ns) {
  std::optional<Comparison> best;
  int64_t first_ns = 0;
  int64_t before_ns = 0;
  std::optional<uint64_t> last_timer_ns;
  for (uint32_t i = 0; i <= kStamps; ++i) {
    std::optional<int64_t> device_ns;
    if (const DriverError error = clock.time_of(events_[i], device_ns)) return error;
    if (!device_ns) break;  // there is no anchor yet
    if (const auto timer_ns = this->timer_ns(0, compared_runs_ - kStamps + i); i != 0 && timer_ns) {
      const int64_t half_ns = (*device_ns - before_ns + 1) / 2;
      if (!best || half_ns < best->uncertainty_ns)
        best = {*timer_ns, before_ns + half_ns, half_ns, now_ns};
      if (last_timer_ns)
        timer_step_ns_ = std::gcd(timer_step_ns_, (*timer_ns - *last_timer_ns) & kTimerMask);
      last_timer_ns = timer_ns;
    }
    before_ns = *device_ns;
    if (i == 0) first_ns = before_ns;
  }
  const bool stands_still =
      timer_step_ns_ == 0 && before_ns - first_ns > 2 * static_cast<int64_t>(kMaxTimerStepNs);
  if (!best) {
    compare_due_ns_ = 0;
  } else if (stands_still || timer_step_ns_ > kMaxTimerStepNs) {
    fail("the clock that kernels read has steps of more than " + std::to_string(kMaxTimerStepNs) +
         " ns");
  } else {
    const std::lock_guard lock(mutex_);
    comparison_ = best;
  }
  return {};
}

int64_t GraphStamps::Comparison::on_device(uint64_t stamp_ns) const {
  return device_ns + nearest(stamp_ns - timer_ns, kTimerBits);
}

}  // namespace pig::cuda
