// SPDX-License-Identifier: Apache-2.0
#include "metrics/kernel_launch.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <utility>

#include "cuda/driver_scopes.h"

namespace pig::metrics {
namespace {

/// From here on a block shares a row: a warp would read for longer than others wait.
constexpr I64 kClassesForBlock = 2048;

/// Makes a device's primary context current on the calling thread where that of another one, or
/// none, is. A stream's number may be 0, and then the current context says of which device. Where
/// another context of the same device is current, such as a green one, the stream is of that, and
/// nothing is changed.
class CurrentContext {
 public:
  CurrentContext(const cuda::Driver& driver, cuda::Context context, cuda::Device device)
      : driver_(driver) {
    result_ = driver.CtxGetCurrent(&before_);
    if (result_ != cuda::kSuccess || before_ == context) return;
    cuda::Device current = 0;
    is_foreign_ =
        before_ != nullptr && driver.CtxGetDevice(&current) == cuda::kSuccess && current == device;
    if (is_foreign_) return;
    result_ = driver.CtxSetCurrent(context);
    changed_ = result_ == cuda::kSuccess;
  }
  ~CurrentContext() {
    if (changed_) driver_.CtxSetCurrent(before_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  int result() const { return result_; }
  bool is_foreign() const { return is_foreign_; }

 private:
  const cuda::Driver& driver_;
  cuda::Context before_ = nullptr;
  int result_ = cuda::kSuccess;
  bool is_foreign_ = false;
  bool changed_ = false;
};

bool is_cross_entropy(const Batch& batch) { return batch.loss_kind == kCrossEntropy; }

/// What is launched for an update.
struct Work {
  cuda::Kernel kernel;
  unsigned blocks;
};

Work work_of(const UpdateParameters& update, const Kernels& kernels, int processors) {
  const Batch& batch = update.batch;
  const LaunchShape shape = shape_of(batch, processors);
  return {kernels.update_of(is_cross_entropy(batch), batch.logits_format, shape.rows_by),
          shape.blocks};
}

Work work_of(const ScalarParameters&, const Kernels& kernels, int) { return {kernels.scalar, 1}; }

/// Of one that is read element by element.
template <typename Update>
Work work_of(const Update& update, const Kernels& kernels, int processors) {
  return {Update::kIsUpdate ? kernels.rows : kernels.values,
          blocks_of_elements(update.batch.elements, Update::kBlocks * processors)};
}

}  // namespace

LaunchShape shape_of(const Batch& batch, int processors) {
  LaunchShape shape;
  I64 rows_per_block = 1;
  if (batch.class_stride != 1 || batch.classes <= 4) {
    shape.rows_by = RowsBy::kThread;
    rows_per_block = kThreads;
  } else if (batch.classes < kClassesForBlock) {
    shape.rows_by = RowsBy::kWarp;
    rows_per_block = kThreads / 32;
  }
  const I64 needed = (batch.rows + rows_per_block - 1) / rows_per_block;
  const I64 at_once =
      blocks_per_processor(is_cross_entropy(batch), batch.logits_format, shape.rows_by);
  const I64 most = std::min<I64>(kMaxBlocks, at_once * processors);
  // Without rows too: the update counts.
  shape.blocks = static_cast<unsigned>(std::clamp<I64>(needed, 1, std::max<I64>(most, 1)));
  return shape;
}

unsigned blocks_of_elements(I64 elements, int at_once) {
  constexpr I64 kElementsPerBlock = I64{kThreads} * kElementsAtOnce;
  const I64 needed = (elements + kElementsPerBlock - 1) / kElementsPerBlock;
  return static_cast<unsigned>(std::clamp<I64>(needed, 1, std::clamp(at_once, 1, kMaxBlocks)));
}

cuda::Stream identity_of(cuda::Stream stream) {
  if (!cuda::is_per_thread(stream)) return stream;
  static std::atomic<uintptr_t> threads{0};
  thread_local const uintptr_t thread = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  // Handles of others are multiples of 8.
  return reinterpret_cast<cuda::Stream>(thread << 3 | reinterpret_cast<uintptr_t>(stream));
}

KernelLauncher::~KernelLauncher() {
  if (device_ != nullptr && !was_captured()) device_->give_back(snapshot_, launches_);
}

bool KernelLauncher::read(std::vector<uint8_t>& state, U64& lost) const {
  const Snapshot* const snapshot = readable_.load(std::memory_order_acquire);
  if (snapshot == nullptr) return false;
  // While the newest is being written, the one before is whole.
  const unsigned newest = newest_publication(*snapshot);
  return read_publication(*snapshot, newest, state, lost) ||
         (newest > 1 && read_publication(*snapshot, newest - 1, state, lost));
}

/// Null where nothing can be launched now.
const Kernels* KernelLauncher::ready(const Destination& to) {
  if (failed_.load(std::memory_order_relaxed)) return nullptr;
  if (!is_prepared_.load(std::memory_order_acquire) && !prepare(to.device, to.stream))
    return nullptr;
  if (to.device != ordinal_) return nullptr;
  if (const Kernels* const known = kernels_.load(std::memory_order_acquire)) return known;
  const Kernels* const kernels = store_.kernels_on(to.device);
  if (kernels == nullptr) return nullptr;
  if (!kernels->error.empty()) {
    fail(kernels->error);
    return nullptr;
  }
  kernels_.store(kernels, std::memory_order_release);
  return kernels;
}

bool KernelLauncher::prepare(int ordinal, cuda::Stream stream) {
  std::string error;
  const std::shared_ptr<MetricDevice> device = store_.device(ordinal, error);
  if (device == nullptr) return fail(std::move(error));
  const cuda::Driver& driver = *store_.driver();
  const cuda::ContextScope scope(driver, device->context());
  if (scope.error()) return fail(scope.error());
  // Taking pinned memory could end the capture of a graph: not now.
  cuda::CaptureStatus status = cuda::kNotCapturing;
  if (driver.StreamIsCapturing(stream, &status) != cuda::kSuccess || status != cuda::kNotCapturing)
    return false;
  cuda::DriverError allocation;
  const std::optional<MappedSnapshot> snapshot = device->take_snapshot(allocation);
  if (!snapshot) return fail(allocation);
  const std::lock_guard lock(mutex_);
  const bool is_prepared = is_prepared_.load(std::memory_order_relaxed);
  if (is_prepared || failed_.load(std::memory_order_relaxed)) {  // another thread was faster
    device->give_back(*snapshot, 0);
    return is_prepared;
  }
  driver_ = &driver;
  snapshot_ = *snapshot;
  ordinal_ = ordinal;
  device_ = device;
  readable_.store(snapshot_.host, std::memory_order_release);
  is_prepared_.store(true, std::memory_order_release);
  return true;
}

template <typename Parameters>
Launched KernelLauncher::launch(Parameters update, const Destination& to) {
  const Kernels* const kernels = ready(to);
  if (kernels == nullptr) return Launched::kNot;
  const Work work = work_of(update, *kernels, device_->processors());
  const bool is_captured = captures(*driver_, to.stream);
  const CurrentContext current(*driver_, device_->context(), ordinal_);
  if (current.is_foreign()) return Launched::kNot;
  if (current.result() != cuda::kSuccess) {
    fail(cuda::DriverError{"cuCtxSetCurrent", current.result()});
    return Launched::kNot;
  }
  if constexpr (std::is_same_v<Parameters, UpdateParameters>)
    if (update.batch.class_weight != nullptr)
      update.batch.class_weight = reinterpret_cast<const double*>(to.scratch + 1);
  LaunchParameters& common = update.launch;
  common.state = to.state;
  common.scratch = to.scratch;
  common.snapshot = snapshot_.device;
  common.scalars = to.scalars;
  common.matrix_words = to.matrix_words;
  {
    const std::lock_guard lock(mutex_);
    if (++generation_ == 0) ++generation_;
    common.generation = generation_;
    common.slot = slot_of(identity_of(to.stream), is_captured);
  }
  void* arguments[] = {&update};
  const int result = driver_->LaunchKernel(work.kernel, work.blocks, 1, 1, kThreads, 1, 1, 0,
                                           to.stream, arguments, nullptr);
  if (result != cuda::kSuccess) {
    // A capture that has gone wrong is the program's, and passes.
    if (!cuda::is_capture_code(result)) fail(cuda::DriverError{"cuLaunchKernel", result});
    return Launched::kNot;
  }
  if (is_captured) {
    was_captured_.store(true, std::memory_order_relaxed);
    return Launched::kIntoGraph;
  }
  launches_.fetch_add(1, std::memory_order_relaxed);
  return Launched::kOnStream;
}

template Launched KernelLauncher::launch(UpdateParameters, const Destination&);
template Launched KernelLauncher::launch(ScalarParameters, const Destination&);
template Launched KernelLauncher::launch(ValuesParameters, const Destination&);
template Launched KernelLauncher::launch(RowsParameters, const Destination&);

/// Updates on one stream have one slot, and what is captured another: a graph may be replayed
/// beside any stream. One stream too many takes over the slot of the first.
int KernelLauncher::slot_of(cuda::Stream stream, bool is_captured) {
  constexpr int kSlotsOfStreams = kSlots - 1;
  if (is_captured) return kSlotsOfStreams;
  for (int slot = 0; slot < streams_; ++slot)
    if (stream_of_slot_[static_cast<size_t>(slot)] == stream) return slot;
  const int slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % kSlotsOfStreams;
  streams_ = std::max(streams_, slot + 1);
  stream_of_slot_[static_cast<size_t>(slot)] = stream;
  return slot;
}

bool KernelLauncher::fail(std::string error) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return false;  // another thread's is the reason
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  readable_.store(nullptr, std::memory_order_release);  // no kernel writes it any more
  return false;
}

bool KernelLauncher::fail(const cuda::DriverError& error) {
  return fail(std::string(error.call) + ": " + store_.driver()->describe(error.result));
}

}  // namespace pig::metrics
