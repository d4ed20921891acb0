// SPDX-License-Identifier: Apache-2.0
#include "metrics/kernel_launch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "cuda/context_scope.h"

namespace pig::metrics {
namespace {

/// From here on a block shares a row: a warp would read for longer than others wait.
constexpr I64 kClassesForBlock = 2048;

/// Makes a context current on the calling thread where another one, or none, is. A stream's number
/// may be 0, and then the current context says of which device.
class CurrentContext {
 public:
  CurrentContext(const cuda::Driver& driver, cuda::Context context) : driver_(driver) {
    result_ = driver.CtxGetCurrent(&before_);
    if (result_ != cuda::kSuccess || before_ == context) return;
    result_ = driver.CtxSetCurrent(context);
    changed_ = result_ == cuda::kSuccess;
  }
  ~CurrentContext() {
    if (changed_) driver_.CtxSetCurrent(before_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  int result() const { return result_; }

 private:
  const cuda::Driver& driver_;
  cuda::Context before_ = nullptr;
  int result_ = cuda::kSuccess;
  bool changed_ = false;
};

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
  const I64 most = std::min<I64>(kMaxBlocks, I64{kBlocksPerProcessor} * processors);
  // Without rows too: the update counts.
  shape.blocks = static_cast<unsigned>(std::clamp<I64>(needed, 1, std::max<I64>(most, 1)));
  return shape;
}

KernelLauncher::~KernelLauncher() {
  if (device_ != nullptr && !was_captured_) device_->give_back(snapshot_, launches_);
}

bool KernelLauncher::update(const Batch& batch, State* state, Scratch* scratch, int device,
                            cuda::Stream stream) {
  if (!ready(device, stream)) return false;
  const LaunchShape shape = shape_of(batch, device_->processors());
  UpdateParameters parameters{batch,          state, scratch, snapshot_.device, next_generation(),
                              slot_of(stream)};
  return launch(kernels_->update_of(batch.logits_format, shape.rows_by), shape.blocks, stream,
                &parameters);
}

bool KernelLauncher::update_scalar(const void* value, Format format, double number, int slot,
                                   State* state, Scratch* scratch, I64 confusion_classes,
                                   int device, cuda::Stream stream) {
  if (!ready(device, stream)) return false;
  ScalarParameters parameters{
      value, format, slot, number, state, scratch, snapshot_.device, confusion_classes};
  return launch(kernels_->scalar, 1, stream, &parameters);
}

bool KernelLauncher::read(std::vector<uint8_t>& state, U64& lost) const {
  const Snapshot* const snapshot = readable_.load(std::memory_order_acquire);
  if (snapshot == nullptr) return false;
  std::atomic_ref sequence(const_cast<U64&>(snapshot->sequence));
  // The device writes for a few microseconds: one that is being written is read at the next call.
  for (int attempt = 0; attempt < 4; ++attempt) {
    const U64 before = sequence.load(std::memory_order_acquire);
    if (before == 0) return false;
    if (before % 2 != 0) continue;
    std::memcpy(state.data(), &snapshot->state, state.size());
    lost = snapshot->lost;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (sequence.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

bool KernelLauncher::ready(int ordinal, cuda::Stream stream) {
  if (failed_.load(std::memory_order_relaxed)) return false;
  if (device_ == nullptr && !prepare(ordinal, stream)) return false;
  if (ordinal != ordinal_) return false;
  is_captured_ = captures(*driver_, stream);
  if (kernels_ != nullptr) return true;
  const Kernels* const kernels = store_.kernels_on(ordinal);
  if (kernels == nullptr) return false;
  if (!kernels->error.empty()) return fail(kernels->error);
  kernels_ = kernels;
  return true;
}

bool KernelLauncher::prepare(int ordinal, cuda::Stream stream) {
  std::string error;
  const std::shared_ptr<MetricDevice> device = store_.device(ordinal, error);
  if (device == nullptr) return fail(std::move(error));
  driver_ = store_.driver();
  const cuda::ContextScope scope(*driver_, device->context());
  if (scope.error()) return fail(scope.error());
  // Taking pinned memory could end the capture of a graph: not now.
  cuda::CaptureStatus status = cuda::kNotCapturing;
  if (driver_->StreamIsCapturing(stream, &status) != cuda::kSuccess ||
      status != cuda::kNotCapturing)
    return false;
  cuda::DriverError allocation;
  const std::optional<MappedSnapshot> snapshot = device->take_snapshot(allocation);
  if (!snapshot) return fail(allocation);
  snapshot_ = *snapshot;
  ordinal_ = ordinal;
  device_ = device;
  readable_.store(snapshot_.host, std::memory_order_release);
  return true;
}

bool KernelLauncher::launch(cuda::Kernel kernel, unsigned blocks, cuda::Stream stream,
                            void* parameters) {
  const CurrentContext current(*driver_, device_->context());
  if (current.result() != cuda::kSuccess)
    return fail(cuda::DriverError{"cuCtxSetCurrent", current.result()});
  void* arguments[] = {parameters};
  const int result =
      driver_->LaunchKernel(kernel, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  // A capture that has gone wrong is the program's, and passes.
  if (result != cuda::kSuccess)
    return !cuda::is_capture_code(result) && fail(cuda::DriverError{"cuLaunchKernel", result});
  if (is_captured_)
    was_captured_ = true;
  else
    ++launches_;
  return true;
}

unsigned KernelLauncher::next_generation() {
  if (++generation_ == 0) ++generation_;
  return generation_;
}

/// Updates on one stream have one slot, and what is captured another: a graph may be replayed
/// beside any stream. One stream too many takes over the slot of the first.
int KernelLauncher::slot_of(cuda::Stream stream) {
  constexpr int kSlotsOfStreams = kSlots - 1;
  if (is_captured_) return kSlotsOfStreams;
  for (int slot = 0; slot < streams_; ++slot)
    if (stream_of_slot_[static_cast<size_t>(slot)] == stream) return slot;
  const int slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % kSlotsOfStreams;
  streams_ = std::max(streams_, slot + 1);
  stream_of_slot_[static_cast<size_t>(slot)] = stream;
  return slot;
}

bool KernelLauncher::fail(std::string error) {
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  readable_.store(nullptr, std::memory_order_release);  // no kernel writes it any more
  return false;
}

bool KernelLauncher::fail(const cuda::DriverError& error) {
  return fail(std::string(error.call) + ": " + driver_->describe(error.result));
}

}  // namespace pig::metrics
