// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_timing.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/throwing.h"
#include "cuda/driver_scopes.h"

namespace pig::cuda {
namespace {

// Until the first are measured, a record is taken to cost this.
constexpr double kRecordNs = 2'000;
// Outside steps the budget may be saved up to so many phases.
constexpr int64_t kMaxOutside = 2048;

/// For how long to try for the device lock.
constexpr std::chrono::seconds kLockPatience{1};
/// For how long to wait for one of several devices.
constexpr std::chrono::milliseconds kDevicePatience{50};

/// How many hardware queues the streams of the process share.
uint32_t connections() {
  const char* value = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int number = value != nullptr ? std::atoi(value) : 0;
  return number > 0 ? static_cast<uint32_t>(std::min(number, 32)) : 8;
}

/// Says for as long as it lives that the harvester is at the driver.
class Asking {
 public:
  explicit Asking(std::atomic<bool>& asking) : asking_(asking) { asking_.store(true); }
  ~Asking() { asking_.store(false); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  std::atomic<bool>& asking_;
};

}  // namespace

std::atomic<Gate> device_gate{Gate::kClosed};

// Leaked: threads may be inside it until the process ends.
DeviceTiming* DeviceTiming::instance_ = new DeviceTiming;

bool DeviceTiming::attach(const TorchFunctions& torch) {
  if (attached()) return true;
  if (forked_) return false;
  const Driver* found = torch.current_stream != nullptr ? cuda::driver() : nullptr;
  if (found == nullptr) {
    warn(torch.current_stream == nullptr
             ? "device timing is off: this PyTorch can't be asked for its current stream; version "
               "2.10 and newer can"
             : "device timing is off: the CUDA driver can't be used: " + driver_error());
    wanted_.store(false);
    return false;
  }
  {
    const std::lock_guard lock(timelines_mutex_);
    if (attached()) return true;
    torch_ = torch;
    // CUDA has read it by now, and perhaps the program had set it just before.
    connections_ = connections();
    time_side_streams();
    driver_.store(found, std::memory_order_release);
  }
  open_gate();
  return true;
}

bool DeviceTiming::start(const Options& options, const Clock& clock, DropCounters& drops,
                         void (*wake)()) {
  const std::unique_lock lock(device_mutex_, kLockPatience);
  if (!lock || is_one_away()) {
    warn(
        "device timing is off in this recording: the CUDA driver has not answered a call of the "
        "last one yet, as it does while a stream hangs; host timing goes on");
    return false;
  }
  found_.clear();
  options_ = options;
  graph_nodes_.store(options.graph_nodes, std::memory_order_relaxed);
  time_side_streams();
  clock_ = &clock;
  drops_ = &drops;
  wake_ = wake;
  share_ticks_ =
      static_cast<uint64_t>(static_cast<double>(options.share_ns) * clock.frequency_hz() / 1e9);
  budget_.reset(options.budget);
  step_begin_ = 0;
  records_.store(0, std::memory_order_relaxed);
  record_ticks_.store(0, std::memory_order_relaxed);
  least_record_ticks_.store(kNoRecordTicks, std::memory_order_relaxed);
  outside_.store(kMaxOutside, std::memory_order_relaxed);
  outside_at_ns_ = 0;
  devices_in_use_.store(0, std::memory_order_relaxed);
  devices_due_ns_ = 0;
  side_stream_skipped_.store(false, std::memory_order_relaxed);
  side_stream_reported_ = false;
  for (EventTimeline* timeline : timelines())
    if (timeline->state() == EventTimeline::State::kReady) timeline->restart(clock);
  recording_.fetch_add(1);
  wanted_.store(true);
  running_.store(true);
  return true;
}

void DeviceTiming::open_gate() {
  if (!running_.load() || !attached()) return;
  prepare_current();
  set_timing_gate(Gate::kOutside);
  // The recording may have been stopped meanwhile.
  if (!running_.load()) set_timing_gate(Gate::kClosed);
}

void DeviceTiming::finish() {
  stop();
  wanted_.store(false);
  graph_nodes_.store(0, std::memory_order_relaxed);
  records_.store(0, std::memory_order_relaxed);
}

void DeviceTiming::stop() {
  running_.store(false);
  is_capturing_.store(false);
  recording_.fetch_add(1);
  set_timing_gate(Gate::kClosed);
}

void DeviceTiming::step_begins() {
  if (!running_.load(std::memory_order_acquire) || !attached()) return;
  step_begin_ = read_ticks();
  step_record_ticks_ = record_ticks_.load(std::memory_order_relaxed);
  set_gate(budget_.begin_step() ? Gate::kTimed : Gate::kClosed);
}

void DeviceTiming::step_ends() {
  // A step that was open when device timing began is none to learn from.
  const uint64_t begin = std::exchange(step_begin_, 0);
  if (!running_.load(std::memory_order_acquire) || !attached() || begin == 0) return;
  const double ns_per_tick = 1e9 / clock_->frequency_hz();
  const uint64_t cost = record_ticks_.load(std::memory_order_relaxed) - step_record_ticks_;
  budget_.end_step(static_cast<uint64_t>(static_cast<double>(read_ticks() - begin) * ns_per_tick),
                   static_cast<uint64_t>(static_cast<double>(cost) * ns_per_tick));
  set_gate(Gate::kOutside);
}

void DeviceTiming::step_is_dropped() {
  if (std::exchange(step_begin_, 0) == 0 || !running_.load(std::memory_order_relaxed)) return;
  budget_.drop_step();
  set_gate(Gate::kOutside);
}

void DeviceTiming::set_gate(Gate timing) {
  gate_after_capture_ = timing;
  set_timing_gate(is_capturing_.load() ? Gate::kTimed : timing);
}

void DeviceTiming::capture_begins() {
  if (!times_steps()) return;
  if (!is_capturing_.exchange(true))
    gate_after_capture_ = timing_of(device_gate.load(std::memory_order_relaxed));
  set_timing_gate(Gate::kTimed);
}

void DeviceTiming::capture_ends() {
  if (is_capturing_.exchange(false) && times_steps()) set_timing_gate(gate_after_capture_);
}

EventTimeline* DeviceTiming::current_timeline() {
  Context context = nullptr;
  if (driver().CtxGetCurrent(&context) != kSuccess) return nullptr;
  EventTimeline* const found = context != nullptr ? timeline_of(context) : timeline_of_no_context();
  const bool is_ready = found != nullptr && found->state() == EventTimeline::State::kReady;
  return is_ready ? found : nullptr;
}

void DeviceTiming::prepare_capture() {
  /// Graph nodes preallocated for a capture without its own limit: 4 MB of host memory.
  constexpr uint32_t kNodesAtOnce = 2048;
  if (!times_steps() || most_graph_nodes() == 0) return;
  prepare_current();
  EventTimeline* const timeline = current_timeline();
  if (timeline == nullptr) return;
  const ContextScope scope(driver(), timeline->context());
  if (!scope.error()) timeline->stamps().prepare(std::min(most_graph_nodes(), kNodesAtOnce));
}

EventTimeline* DeviceTiming::marked_timeline() {
  if (!times_steps() || most_graph_nodes() == 0) return nullptr;
  EventTimeline* const timeline = current_timeline();
  return timeline != nullptr && timeline->stamps().is_ready() ? timeline : nullptr;
}

EventTimeline* DeviceTiming::known_timeline(Context context) const {
  for (const auto& timeline : timelines_)
    if (timeline->context() == context) return timeline.get();
  return nullptr;
}

EventTimeline* DeviceTiming::timeline_of(Context context) noexcept {
  {
    const std::lock_guard lock(timelines_mutex_);
    if (EventTimeline* known = known_timeline(context)) return known;
    if (foreign_.contains(context)) return nullptr;
  }
  const Driver& driver = this->driver();
  Device device = 0;
  unsigned flags = 0;
  int active = 0;
  Context primary = nullptr;
  if (driver.CtxGetDevice(&device) != kSuccess ||
      driver.DevicePrimaryCtxGetState(device, &flags, &active) != kSuccess)
    return nullptr;
  // Retaining makes a context where there is none: only an active one is retained.
  if (active != 0 && driver.DevicePrimaryCtxRetain(&primary, device) == kSuccess)
    driver.DevicePrimaryCtxRelease(device);
  EventTimeline* found = nullptr;
  try_allocating([&] {
    const std::lock_guard lock(timelines_mutex_);
    if (primary != context) {
      if (foreign_.size() == kMaxForeign) foreign_.clear();
      foreign_.insert(context);
      return;
    }
    found = known_timeline(context);
    if (found != nullptr || timelines_.size() == kMaxDevices) return;
    for (const auto& timeline : timelines_)
      if (timeline->device() == device) found = timeline.get();
    if (found != nullptr) return found->fail("the device was reset");
    timelines_.push_back(std::make_unique<EventTimeline>(
        driver, context, device, static_cast<uint8_t>(timelines_.size()), connections_));
    if (wake_ != nullptr) wake_();
    found = timelines_.back().get();
  });
  return found;
}

EventTimeline* DeviceTiming::timeline_of_no_context() noexcept {
  int32_t device = 0;
  const bool is_known = torch_.current_device != nullptr && torch_.current_device(&device) == 0;
  const std::lock_guard lock(timelines_mutex_);
  if (!is_known) return timelines_.size() == 1 ? timelines_.front().get() : nullptr;
  for (const auto& timeline : timelines_)
    if (timeline->device() == device) return timeline.get();
  return nullptr;
}

void DeviceTiming::prepare_current() {
  Context context = nullptr;
  if (driver().CtxGetCurrent(&context) != kSuccess || context == nullptr) return;
  EventTimeline* timeline = timeline_of(context);
  // Looked at before the lock, for which each capture would wait while another device hangs.
  if (timeline == nullptr || timeline->state() != EventTimeline::State::kPreparing) return;
  const std::unique_lock lock(device_mutex_, kLockPatience);
  if (lock && !timeline->asker.is_away() && timeline->state() == EventTimeline::State::kPreparing)
    prepare(*timeline);
}

void DeviceTiming::prepare(EventTimeline& timeline) {
  const ContextScope scope(driver(), timeline.context());
  if (scope.error()) {
    timeline.fail(scope.error());
    return;
  }
  timeline.prepare(*clock_);
}

void DeviceTiming::harvest(Findings& findings, bool final) {
  if (!attached()) return;
  // Whoever has it is preparing a device, or is the harvester of an earlier recording.
  const std::unique_lock lock(device_mutex_, std::try_to_lock);
  if (!lock || !wanted_.load(std::memory_order_relaxed)) return;
  const Asking asking(asking_);
  const std::vector<EventTimeline*> timelines = this->timelines();
  for (EventTimeline* timeline : timelines) {
    if (timeline->asker.is_away()) continue;
    Findings& found = found_[timeline];
    const auto ask = [this, timeline, &found, final] { this->ask(*timeline, found, final); };
    if (timelines.size() == 1 || !timeline->asker.request(ask)) ask();
    if (timeline->asker.wait(std::chrono::steady_clock::now() + kDevicePatience))
      findings.add(std::exchange(found, {}));
  }
  collect_warnings();
  refill_outside();
  if (!is_one_away()) count_devices();
}

void DeviceTiming::Findings::add(Findings&& more) {
  if (empty()) times.swap(more.times);
  times.insert(times.end(), more.times.begin(), more.times.end());
  points.insert(points.end(), more.points.begin(), more.points.end());
  correlating |= more.correlating;
}

void DeviceTiming::ask(EventTimeline& timeline, Findings& findings, bool final) {
  if (timeline.state() == EventTimeline::State::kPreparing) prepare(timeline);
  if (timeline.state() == EventTimeline::State::kReady && timeline.has_its_context())
    harvest(timeline, findings, final);
}

bool DeviceTiming::is_one_away() const {
  const std::lock_guard lock(timelines_mutex_);
  return std::any_of(timelines_.begin(), timelines_.end(),
                     [](const auto& timeline) { return timeline->asker.is_away(); });
}

void DeviceTiming::harvest(EventTimeline& timeline, Findings& findings, bool final) {
  {
    const ContextScope scope(driver(), timeline.context());
    if (scope.error()) {
      timeline.fail(scope.error());
      return;
    }
    timeline.harvest(findings.times);
  }
  for (const DeviceClock::Point& point : timeline.clock().take_points(final))
    findings.points.emplace_back(timeline.device(), point);
  findings.correlating |=
      timeline.state() == EventTimeline::State::kReady && timeline.correlation_due();
}

/// What phases outside steps may cost grows with time.
void DeviceTiming::refill_outside() {
  const int64_t now_ns = clock_->to_ns(read_ticks());
  const uint64_t count = records();
  const double record =
      count != 0 ? static_cast<double>(record_ns()) / static_cast<double>(count) : kRecordNs;
  // A phase is at most two records.
  const double gained =
      options_.budget * static_cast<double>(now_ns - outside_at_ns_) / std::max(2 * record, 1.0);
  if (gained >= 1) {
    const int64_t left = std::max<int64_t>(outside_.load(std::memory_order_relaxed), 0);
    outside_.store(
        static_cast<int64_t>(std::min(static_cast<double>(left) + gained, double{kMaxOutside})),
        std::memory_order_relaxed);
    outside_at_ns_ = now_ns;
  }
}

void DeviceTiming::count_devices() {
  constexpr int64_t kIntervalNs = 1'000'000'000;
  const int64_t now_ns = clock_->to_ns(read_ticks());
  if (now_ns < devices_due_ns_) return;
  devices_due_ns_ = now_ns + kIntervalNs;
  uint32_t count = 0;
  for (uint32_t device = 0; device < kMaxDevices; ++device) {
    unsigned flags = 0;
    int is_active = 0;
    if (driver().DevicePrimaryCtxGetState(static_cast<Device>(device), &flags, &is_active) !=
        kSuccess)
      break;  // there are no more
    if (is_active != 0) ++count;
  }
  devices_in_use_.store(count, std::memory_order_relaxed);
}

void DeviceTiming::correlate_soon() {
  const std::unique_lock lock(device_mutex_, std::try_to_lock);
  if (!lock) return;
  for (EventTimeline* timeline : timelines())
    if (!timeline->asker.is_away()) timeline->clock().correlate_soon();
}

std::vector<EventTimeline*> DeviceTiming::timelines() const {
  const std::lock_guard lock(timelines_mutex_);
  std::vector<EventTimeline*> timelines;
  timelines.reserve(timelines_.size());
  for (const auto& timeline : timelines_) timelines.push_back(timeline.get());
  return timelines;
}

uint64_t DeviceTiming::record_ns() const {
  return static_cast<uint64_t>(static_cast<double>(record_ticks_.load(std::memory_order_relaxed)) *
                               1e9 / clock_->frequency_hz());
}

std::vector<std::string> DeviceTiming::take_warnings() {
  const std::lock_guard lock(timelines_mutex_);
  return std::exchange(warnings_, {});
}

bool DeviceTiming::has_warnings() const {
  const std::lock_guard lock(timelines_mutex_);
  return !warnings_.empty();
}

void DeviceTiming::warn_of_blocked_driver() {
  if (!wanted_.load()) return;  // this recording has begun without
  warn(
      "the CUDA driver did not answer for a second when the recording stopped, as it does while a "
      "stream hangs: device times of its end are missing");
}

void DeviceTiming::warn(std::string warning) {
  const std::lock_guard lock(timelines_mutex_);
  warnings_.push_back(std::move(warning));
}

/// Looks for what the user should be told, and has not been yet.
void DeviceTiming::collect_warnings() {
  const std::lock_guard lock(timelines_mutex_);
  for (const auto& timeline : timelines_)
    if (const std::string failure = timeline->take_failure(); !failure.empty())
      warnings_.push_back("device timing is off for GPU " + std::to_string(timeline->device()) +
                          ": " + failure + "; host timing goes on");
  if (side_stream_skipped_.load(std::memory_order_relaxed) && !side_stream_reported_) {
    side_stream_reported_ = true;
    warnings_.emplace_back(
        "CUDA_DEVICE_MAX_CONNECTIONS=1: phases on side streams are not timed on the device, "
        "because timing events there can keep streams from overlapping; device_timing=\"force\" "
        "times them anyway");
  }
}

void DeviceTiming::after_fork_in_child() {
  device_gate.store(Gate::kClosed, std::memory_order_relaxed);
  // The parent's stays behind, locked as it may be.
  instance_ = new DeviceTiming;
  instance_->forked_ = true;
}

}  // namespace pig::cuda
