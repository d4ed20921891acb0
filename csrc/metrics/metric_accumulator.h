// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hot/active_recording.h"
#include "hot/span.h"
#include "metrics/kernel_launch.h"
#include "metrics/metric_batch.h"

namespace pig::metrics {

/// During which step each of the newest `kSize` updates was made. An update that is read back much
/// later has no label.
template <size_t kSize>
class UpdateLabels {
 public:
  /// Labels an update with the step that is open now.
  void set(uint64_t update) {
    const uint64_t step = open_step.load(std::memory_order_relaxed);
    labels_[update % kSize] = {update, active_epoch.load(std::memory_order_relaxed),
                               step == kNoOpenStep ? kNoStep : static_cast<uint32_t>(step)};
  }

  /// The serial number of the update's step in the recording that is active; kNoStep where there is
  /// none or it is not known.
  uint32_t step_of(uint64_t update) const {
    const Label& label = labels_[update % kSize];
    const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
    return epoch != 0 && label.update == update && label.epoch == epoch ? label.step : kNoStep;
  }

  void clear() { labels_ = {}; }

 private:
  struct Label {
    uint64_t update = 0;  ///< 0: none
    uint32_t epoch = 0;   ///< the recording
    uint32_t step = kNoStep;
  };

  std::array<Label, kSize> labels_{};
};

/// The host's side of one accumulator of pyinstrument_gpu.metrics. The state itself is a tensor's
/// memory, which each call brings.
///
/// `mutex_` guards what the host knows, and a state in host memory. It is held for less than a
/// microsecond, or for a fold on the CPU: any thread may wait for it. Whoever copies or clears a
/// large matrix under it does so without the GIL.
///
/// A kernel is launched without it, which may take forever when the device hangs. Launches by
/// several threads don't wait for each other. Only an addition by other means waits for those that
/// are under way, because it is many operations, and no kernel may come between them. Whoever
/// launches or waits must not have the GIL, or other threads could not go on: those that would end
/// the hang, too.
class MetricAccumulator {
 public:
  /// How many updates a state has, and then how many values of each slot.
  using Counts = std::array<uint64_t, 1 + kMaxScalars>;

  /// `counts` are those of its state at first; nothing where the host does not know them.
  MetricAccumulator(const MetricOptions& options, const std::optional<Counts>& counts)
      : options_(options),
        counts_(counts.value_or(Counts{})),
        device_counts_are_known_(counts.has_value()),
        scalars_in_use_(counts ? in_use(*counts) : kMaxScalars) {}

  const MetricOptions& options() const { return options_; }

  // An update is named by what its kernel takes (metric_kernel.h), but for the LaunchParameters.

  /// Adds tensors in host memory. Only the fold, of microseconds, is under the lock. False while an
  /// addition by other means is under way, which takes several operations: what came between them
  /// would be lost. Likewise if memory is short.
  bool add(const UpdateParameters& update, State& state, int max_threads);
  bool add(const ScalarParameters& update, State& state, int max_threads);
  bool add(const ValuesParameters& update, State& state, int max_threads);
  bool add(const RowsParameters& update, State& state, int max_threads);

  /// The same by a kernel, without the GIL. False where none could be launched, too.
  template <typename Update>
  bool launch(const Update& update, Destination to);
  /// Why no kernel can be launched, or empty.
  std::string launch_error() const { return launcher_.error(); }
  /// Whether the last launch was on another stream, or there was none. This one is remembered.
  bool changes_stream(cuda::Stream stream) {
    stream = identity_of(stream);
    return last_stream_.exchange(stream, std::memory_order_relaxed) != stream;
  }

  /// Whether a launch was captured into a graph. Once no other thread uses the accumulator.
  bool was_captured() const { return launcher_.was_captured(); }

  /// Around an addition to the state by other means, of which there is one at a time. Without the
  /// GIL.
  void begin_other() {
    std::unique_lock lock(mutex_);
    launched_.wait(lock, [this] { return launching_ == 0; });
    other_is_running_ = true;
  }
  /// What it has added, as `slot` a running value; nothing where it has failed. `is_counted`:
  /// whether the state has it once for certain. Its stream, if it has one.
  enum class Addition { kNothing, kUpdate, kScalar };
  void end_other(Addition addition, int slot, bool is_counted, std::optional<cuda::Stream> stream);

  /// The state has been replaced by another one, which has so many; nothing where the host does not
  /// know. To be called during an addition by other means, without the GIL.
  void replace_counts(const std::optional<Counts>& counts);

  /// All running values of the state become those of none, in the order of the calls.
  void reset_scalars();

  /// A consistent copy of a state in host memory: as much of it as there is room for. False while
  /// an addition by other means is under way.
  bool copy(State& state, std::span<uint8_t> bytes);
  /// Clears a state in host memory. Returns the number of its newest update; nothing while an
  /// addition by other means is under way.
  std::optional<U64> reset(State& state);
  /// The newest copy that a kernel has made, and how many updates were lost on the device. False
  /// where there is none. Never waits.
  bool copy_snapshot(std::vector<uint8_t>& bytes, U64& lost) const {
    return launcher_.read(bytes, lost);
  }

  /// As many as the host knows of; nothing where the device may have others.
  std::optional<Counts> counts() const {
    const std::lock_guard lock(mutex_);
    return device_counts_are_known_ ? std::optional(counts_) : std::nullopt;
  }

  /// The serial number of the step that an update was made in; kNoStep where it is not known.
  uint32_t step_of(uint64_t update) const {
    const std::lock_guard lock(mutex_);
    return labels_.step_of(update);
  }
  /// The same for a value of a slot, by its number since the reset.
  uint32_t step_of_scalar(int slot, uint64_t number) const {
    const std::lock_guard lock(mutex_);
    return scalar_labels_[static_cast<size_t>(slot)].step_of(number);
  }

  /// Whether a reading should go to the recording that is active. At most ten a second, and later
  /// in a long run one in a thousandth of its time: so many are some thousands, however long it
  /// lasts.
  bool reading_is_due();
  /// The recording that is active, if anything was added during it since this was last asked; 0
  /// otherwise.
  uint32_t take_news();

 private:
  template <typename Update>
  bool add_elements(const Update& update, State& state, int max_threads);
  static int in_use(const Counts& counts);
  uint64_t& count_of(int slot) { return counts_[static_cast<size_t>(1 + slot)]; }
  void note_update(uint64_t number);
  void note_scalar(int slot, uint64_t number);
  void keep_order(cuda::Stream stream);
  void forget_scalars();
  void note_news() { news_epoch_ = active_epoch.load(std::memory_order_relaxed); }

  const MetricOptions options_;
  KernelLauncher launcher_;
  std::atomic<cuda::Stream> last_stream_{reinterpret_cast<cuda::Stream>(~uintptr_t{0})};

  mutable std::mutex mutex_;
  std::condition_variable launched_;
  int launching_ = 0;              ///< launches that are under way
  bool launches_overlap_ = false;  ///< several were since there was none
  bool other_is_running_ = false;
  Counts counts_;
  /// Labels are found by the numbers that the device counts, so the host has to count as it does.
  /// It can't where a graph may be replayed, where several streams, which it sees in no order,
  /// update the state, and after an error. From then on nothing is labelled. Nor are launches that
  /// several threads make at once, whose order is not known.
  bool device_counts_are_known_;
  int scalars_in_use_;
  std::optional<cuda::Stream> stream_;  ///< of all that was added on the device
  UpdateLabels<1024> labels_;
  std::array<UpdateLabels<64>, kMaxScalars> scalar_labels_;
  uint32_t news_epoch_ = 0;  ///< the recording in which something was added; 0: none
  uint32_t reading_epoch_ = 0;
  int64_t next_reading_ns_ = 0;
};

template <typename Update>
bool MetricAccumulator::launch(const Update& update, Destination to) {
  constexpr bool kOfRunningValue = requires { update.slot; };
  to.matrix_words = options_.reading_matrix_words();
  {
    const std::lock_guard lock(mutex_);
    if (other_is_running_) return false;
    launches_overlap_ = launching_++ != 0;
    to.scalars = static_cast<unsigned>(scalars_in_use_);
  }
  if constexpr (kOfRunningValue)
    to.scalars = std::max(to.scalars, static_cast<unsigned>(update.slot) + 1);
  const Launched launched = launcher_.launch(update, to);
  const std::lock_guard lock(mutex_);
  if (launched == Launched::kIntoGraph) {  // not made yet, perhaps never, or many times
    device_counts_are_known_ = false;
  } else if (launched == Launched::kOnStream) {
    keep_order(to.stream);
    if constexpr (kOfRunningValue) {
      note_scalar(update.slot, count_of(update.slot) + 1);
    } else {
      note_update(counts_[0] + 1);
    }
  }
  if (--launching_ == 0) {
    launches_overlap_ = false;
    launched_.notify_all();
  }
  return launched != Launched::kNot;
}

}  // namespace pig::metrics
