// SPDX-License-Identifier: Apache-2.0
#include "metrics/kernel_launch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "cuda/context_scope.h"

namespace pig::metrics {
namespace {

constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
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

bool KernelLauncher::update(const Batch& batch, State* state, Scratch* scratch, int device,
                            cuda::Stream stream) {
  if (!ready(device, stream)) return false;
  const LaunchShape shape = shape_of(batch, processors_);
  UpdateParameters parameters{batch,          state, scratch, device_snapshot_, next_generation(),
                              slot_of(stream)};
  return launch(kernels_->update_of(batch.logits_format, shape.rows_by), shape.blocks, stream,
                &parameters);
}

bool KernelLauncher::update_scalar(const void* value, Format format, double number, int slot,
                                   State* state, Scratch* scratch, I64 confusion_classes,
                                   int device, cuda::Stream stream) {
  if (!ready(device, stream)) return false;
  ScalarParameters parameters{
      value, format, slot, number, state, scratch, device_snapshot_, confusion_classes};
  return launch(kernels_->scalar, 1, stream, &parameters);
}

bool KernelLauncher::read(std::vector<uint8_t>& bytes) const {
  // After an error no kernel writes it any more.
  if (snapshot_ == nullptr || !error_.empty()) return false;
  std::atomic_ref sequence(snapshot_->sequence);
  // The device writes for a few microseconds: one that is being written is read at the next call.
  for (int attempt = 0; attempt < 4; ++attempt) {
    const U64 before = sequence.load(std::memory_order_acquire);
    if (before == 0) return false;
    if (before % 2 != 0) continue;
    std::memcpy(bytes.data(), &snapshot_->state, bytes.size());
    std::atomic_thread_fence(std::memory_order_acquire);
    if (sequence.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

bool KernelLauncher::ready(int device, cuda::Stream stream) {
  if (!error_.empty()) return false;
  if (device_ != device && !prepare(device, stream)) return false;
  if (kernels_ != nullptr) return true;
  const Kernels* const kernels = store_.kernels_on(device);
  if (kernels == nullptr) return false;
  if (kernels->error.empty())
    kernels_ = kernels;
  else
    error_ = kernels->error;
  return kernels_ != nullptr;
}

bool KernelLauncher::prepare(int device, cuda::Stream stream) {
  driver_ = store_.driver();
  if (driver_ == nullptr) {
    error_ = store_.error();
    return false;
  }
  cuda::Context context = nullptr;
  if (const int result = driver_->DevicePrimaryCtxRetain(&context, device))
    return fail("cuDevicePrimaryCtxRetain", result);
  const bool prepared = prepare_in(context, device, stream);
  if (!prepared) driver_->DevicePrimaryCtxRelease(device);
  return prepared;
}

bool KernelLauncher::prepare_in(cuda::Context context, int device, cuda::Stream stream) {
  const cuda::ContextScope scope(*driver_, context);
  if (scope.error()) return fail(scope.error().call, scope.error().result);
  // Taking pinned memory could end the capture of a graph: not now.
  cuda::CaptureStatus status = cuda::kNotCapturing;
  if (driver_->StreamIsCapturing(stream, &status) != cuda::kSuccess ||
      status != cuda::kNotCapturing)
    return false;
  if (const int result = driver_->DeviceGetAttribute(&processors_, kMultiprocessorCount, device))
    return fail("cuDeviceGetAttribute", result);
  void* memory = nullptr;
  if (const int result = driver_->MemHostAlloc(&memory, sizeof(Snapshot),
                                               cuda::kHostAllocPortable | cuda::kHostAllocMapped))
    return fail("cuMemHostAlloc", result);
  snapshot_ = new (memory) Snapshot{};
  cuda::DevicePointer device_pointer = 0;
  if (const int result = driver_->MemHostGetDevicePointer(&device_pointer, memory, 0))
    return fail("cuMemHostGetDevicePointer", result);
  device_snapshot_ = reinterpret_cast<Snapshot*>(device_pointer);
  kernels_ = nullptr;
  context_ = context;
  device_ = device;
  return true;
}

bool KernelLauncher::launch(cuda::Kernel kernel, unsigned blocks, cuda::Stream stream,
                            void* parameters) {
  const CurrentContext current(*driver_, context_);
  if (current.result() != cuda::kSuccess) return fail("cuCtxSetCurrent", current.result());
  void* arguments[] = {parameters};
  const int result =
      driver_->LaunchKernel(kernel, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  if (result == cuda::kSuccess) return true;
  // A capture that has gone wrong is the program's, and passes.
  return !cuda::is_capture_code(result) && fail("cuLaunchKernel", result);
}

unsigned KernelLauncher::next_generation() {
  if (++generation_ == 0) ++generation_;
  return generation_;
}

/// Updates on one stream have one slot. A fifth stream takes over the first one's.
int KernelLauncher::slot_of(cuda::Stream stream) {
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found != streams_.end()) return static_cast<int>(found - streams_.begin());
  const int slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % kSlots;
  streams_[static_cast<size_t>(slot)] = stream;
  return slot;
}

bool KernelLauncher::fail(const char* call, int result) {
  error_ = std::string(call) + ": " + driver_->describe(result);
  return false;
}

}  // namespace pig::metrics
