// SPDX-License-Identifier: Apache-2.0
//
// The host's side of updates on a GPU, with a driver table of this test: what it is asked, and what
// comes of its failures. The "kernels" run at once, on the CPU. When they are loaded, too.
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "metrics/cpu_scan.h"
#include "metrics/kernel_launch.h"

using namespace pig::metrics;
namespace cuda = pig::cuda;

namespace {

struct Launch {
  cuda::Stream stream;
  int slot;  ///< of the scratch
  Snapshot* snapshot;
};

std::vector<Launch> launches;
std::vector<std::unique_ptr<char[]>> host_memory;  ///< never freed, as the launcher keeps it
cuda::CaptureStatus capture_status = cuda::kNotCapturing;
int launch_result = cuda::kSuccess;
bool kernels_run = true;

std::vector<std::string> loaded;  ///< the codes, in the order of their loading
std::string refused;              ///< the code that the driver does not take
std::string found_unfit;          ///< the code whose kernels it does not take
int unloaded = 0;
thread_local cuda::Context current_context = nullptr;
cuda::Context const kContext = reinterpret_cast<cuda::Context>(3);

int load(cuda::Library* library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  loaded.emplace_back(static_cast<const char*>(code));
  *library = reinterpret_cast<cuda::Library>(loaded.size());
  return loaded.back() == refused ? 209 : cuda::kSuccess;
}

int get_function(cuda::Function* function, cuda::Kernel kernel) {
  *function = reinterpret_cast<cuda::Function>(kernel);
  return loaded.back() == found_unfit ? 209 : cuda::kSuccess;
}

void publish(State& state, Snapshot* snapshot) {
  static Scratch scratch;
  publish_words({&state, &scratch, snapshot, 1, 0, kMaxScalars, 0},
                newest_publication(*snapshot) + 1, kMaxScalars, 0, 1);
}

int launch(cuda::Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
           cuda::Stream stream, void** parameters, void**) {
  if (launch_result != cuda::kSuccess) return launch_result;
  const auto& p = *static_cast<UpdateParameters*>(parameters[0]);
  const LaunchParameters& launch = p.launch;
  launches.push_back({stream, launch.slot, launch.snapshot});
  if (!kernels_run || capture_status != cuda::kNotCapturing) return cuda::kSuccess;
  std::vector<ConfusionCell> no_cells;
  Totals found = scan_on_cpu(p.batch, no_cells, 1);
  fold_update(p.batch, found, *launch.state);
  publish(*launch.state, launch.snapshot);
  return cuda::kSuccess;
}

const cuda::Driver* driver() {
  static const cuda::Driver table = [] {
    cuda::Driver made;
    made.StreamIsCapturing = [](cuda::Stream, cuda::CaptureStatus* status) {
      *status = capture_status;
      return 0;
    };
    made.GetErrorName = [](int, const char** name) {
      *name = "CUDA_ERROR_MADE_UP";
      return 0;
    };
    made.GetErrorString = [](int, const char** text) {
      *text = "made up";
      return 0;
    };
    made.DeviceGetAttribute = [](int* value, int, cuda::Device) {
      *value = 4;
      return 0;
    };
    made.CtxGetCurrent = [](cuda::Context* context) {
      *context = current_context;
      return 0;
    };
    made.CtxGetDevice = [](cuda::Device* device) {
      *device = 1;
      return 0;
    };
    made.CtxSetCurrent = [](cuda::Context context) {
      current_context = context;
      return 0;
    };
    made.DevicePrimaryCtxRetain = [](cuda::Context* context, cuda::Device) {
      *context = kContext;
      return 0;
    };
    made.DevicePrimaryCtxRelease = [](cuda::Device) { return 0; };
    made.ThreadExchangeStreamCaptureMode = [](cuda::CaptureMode*) { return 0; };
    made.LibraryLoadData = load;
    made.LibraryUnload = [](cuda::Library) {
      ++unloaded;
      return 0;
    };
    made.KernelGetFunction = get_function;
    made.MemFreeHost = [](void*) { return 0; };
    made.LibraryGetKernel = [](cuda::Kernel* kernel, cuda::Library, const char*) {
      *kernel = reinterpret_cast<cuda::Kernel>(1);
      return 0;
    };
    made.LaunchKernel = launch;
    made.MemHostAlloc = [](void** pointer, size_t bytes, unsigned) {
      host_memory.push_back(std::make_unique<char[]>(bytes));
      *pointer = host_memory.back().get();
      return 0;
    };
    made.MemHostGetDevicePointer = [](cuda::DevicePointer* device, void* pointer, unsigned) {
      *device = reinterpret_cast<cuda::DevicePointer>(pointer);
      return 0;
    };
    return made;
  }();
  return &table;
}

const float kLogits[] = {3, 1, 2, 0, 5, 5};
const I64 kTargets[] = {0, 2};
cuda::Stream const kStream = reinterpret_cast<cuda::Stream>(7);

Batch batch() {
  Batch made{};
  made.logits = kLogits;
  made.target = kTargets;
  made.logits_format = kFloat32;
  made.target_format = kInt64;
  made.dims = 1;
  made.rows = 2;
  made.classes = 3;
  made.class_stride = 1;
  made.sizes[0] = 2;
  made.logits_strides[0] = 3;
  made.target_strides[0] = 1;
  made.ignore_index = -100;
  made.topk[0] = 1;
  made.topk[1] = 2;
  return made;
}

Destination to(State* state, cuda::Stream stream = kStream) {
  return {state, nullptr, 0, stream, kMaxScalars, 0};
}

bool is_launched(Launched launched) { return launched != Launched::kNot; }

bool update(KernelLauncher& launcher, State& state, cuda::Stream stream = kStream) {
  return is_launched(launcher.launch(UpdateParameters{{}, batch()}, to(&state, stream)));
}

void load_kernels(KernelStore& store, const char* code = "code", int device = 0) {
  store.load(device, code);
  CHECK(store.wait(std::chrono::hours(1)));
}

bool has_snapshot(const KernelLauncher& launcher) {
  std::vector<uint8_t> bytes(sizeof(State));
  U64 lost = 0;
  return launcher.read(bytes, lost);
}

State newest(const KernelLauncher& launcher) {
  std::vector<uint8_t> bytes(sizeof(State));
  U64 lost = 0;
  CHECK(launcher.read(bytes, lost));
  State state;
  std::memcpy(&state, bytes.data(), sizeof state);
  return state;
}

void test_a_launch_that_a_capture_refuses_is_not_the_last() {
  KernelStore store(driver);
  load_kernels(store);
  KernelLauncher launcher(store);
  State state{};
  CHECK(update(launcher, state));
  launch_result = 901;
  CHECK(!update(launcher, state));
  CHECK(launcher.error().empty());
  launch_result = cuda::kSuccess;
  CHECK(update(launcher, state));
  CHECK_EQ(newest(launcher).updates, 2u);
}

void test_before_the_kernels_are_loaded() {
  KernelStore store(driver);
  KernelLauncher launcher(store);
  State state{};
  const size_t allocations = host_memory.size();
  loaded.clear();
  for (int i = 0; i < 2; ++i) {
    CHECK(!update(launcher, state));
    CHECK(launcher.error().empty());
  }
  load_kernels(store, "of another device", 1);
  CHECK(!update(launcher, state));
  load_kernels(store);
  CHECK(loaded == (std::vector<std::string>{"of another device", "code"}));
  // All else was prepared before: what is left may be captured.
  capture_status = cuda::kCapturing;
  CHECK(update(launcher, state));
  capture_status = cuda::kNotCapturing;
  CHECK_EQ(host_memory.size(), allocations + 1);
  CHECK_EQ(launches.back().slot, kSlots - 1);
}

void test_streams_and_captures_have_slots_of_their_own() {
  KernelStore store(driver);
  load_kernels(store);
  KernelLauncher launcher(store);
  State state{};
  const auto slot = [&](uintptr_t stream) {
    CHECK(update(launcher, state, reinterpret_cast<cuda::Stream>(stream)));
    return launches.back().slot;
  };
  static_assert(kSlots == 4);
  CHECK_EQ(slot(0x100), 0);
  CHECK_EQ(slot(0), 1);
  CHECK_EQ(slot(0x100), 0);
  CHECK_EQ(slot(0x200), 2);
  capture_status = cuda::kCapturing;
  CHECK_EQ(slot(0x100), 3);
  capture_status = cuda::kNotCapturing;
  // One stream too many takes over the oldest's.
  CHECK_EQ(slot(0x300), 0);
  CHECK_EQ(slot(0), 1);
  CHECK_EQ(slot(0x100), 1);
}

void test_the_per_thread_stream_has_a_slot_for_each_thread() {
  KernelStore store(driver);
  load_kernels(store);
  KernelLauncher launcher(store);
  State state{};
  const auto slot = [&] {
    CHECK(update(launcher, state, reinterpret_cast<cuda::Stream>(2)));
    CHECK(launches.back().stream == reinterpret_cast<cuda::Stream>(2));
    return launches.back().slot;
  };
  CHECK_EQ(slot(), 0);
  std::thread([&] { CHECK_EQ(slot(), 1); }).join();
  CHECK_EQ(slot(), 0);
}

/// The snapshot of a launcher that makes one update and is gone.
Snapshot* snapshot_of_one_update(KernelStore& store) {
  KernelLauncher launcher(store);
  State state{};
  CHECK(update(launcher, state));
  return launches.back().snapshot;
}

void test_the_memory_of_a_launcher_that_is_gone_is_used_again() {
  KernelStore store(driver);
  load_kernels(store);
  const size_t allocations = host_memory.size();
  for (int i = 0; i < 100; ++i) {
    snapshot_of_one_update(store);
    KernelLauncher next(store);
    CHECK(!has_snapshot(next));  // what the one before has left is not seen
  }
  CHECK_EQ(host_memory.size(), allocations + 1);
  {
    std::vector<std::unique_ptr<KernelLauncher>> alive;
    State state{};
    for (int i = 0; i < MetricDevice::kSnapshotsAtOnce + 1; ++i) {
      alive.push_back(std::make_unique<KernelLauncher>(store));
      CHECK(update(*alive.back(), state));
    }
    CHECK_EQ(host_memory.size(), allocations + 2);
  }
  for (int i = 0; i < 2 * MetricDevice::kSnapshotsAtOnce; ++i) snapshot_of_one_update(store);
  CHECK_EQ(host_memory.size(), allocations + 2);
}

void test_memory_that_a_kernel_may_still_write_is_not_used_again() {
  KernelStore store(driver);
  load_kernels(store);
  const auto is_used_again = [&](const Snapshot* snapshot) {
    std::vector<std::unique_ptr<KernelLauncher>> alive;
    State state{};
    bool found = false;
    for (int i = 0; i < 2 * MetricDevice::kSnapshotsAtOnce; ++i) {
      alive.push_back(std::make_unique<KernelLauncher>(store));
      CHECK(update(*alive.back(), state));
      found |= launches.back().snapshot == snapshot;
    }
    return found;
  };
  kernels_run = false;
  Snapshot* const pending = snapshot_of_one_update(store);
  kernels_run = true;
  CHECK(!is_used_again(pending));
  State state{};
  publish(state, pending);  // now it has run
  CHECK(is_used_again(pending));

  Snapshot* captured = nullptr;
  {
    KernelLauncher launcher(store);
    State state{};
    CHECK(update(launcher, state));
    capture_status = cuda::kCapturing;
    CHECK(update(launcher, state));
    capture_status = cuda::kNotCapturing;
    captured = launches.back().snapshot;
  }
  CHECK(!is_used_again(captured));
}

/// The error of the launchers for which there are no kernels.
std::string error_after(void (*make)(KernelStore&)) {
  unloaded = 0;
  KernelStore store(driver);
  KernelLauncher first(store), second(store);
  State state{};
  make(store);
  CHECK(!update(first, state));
  CHECK(!update(second, state));
  CHECK_EQ(first.error(), second.error());
  return first.error();
}

void test_kernels_that_cannot_be_had() {
  CHECK_EQ(error_after([](KernelStore& store) { store.fail(0, "NVRTC was not found"); }),
           std::string("NVRTC was not found"));

  refused = "refused";
  CHECK_EQ(error_after([](KernelStore& store) { load_kernels(store, "refused"); }),
           std::string("cuLibraryLoadData: CUDA_ERROR_MADE_UP (209): made up"));
  CHECK_EQ(unloaded, 0);
  refused.clear();

  // A driver may put off looking at the code until a kernel is wanted.
  found_unfit = "unfit";
  CHECK_EQ(error_after([](KernelStore& store) { load_kernels(store, "unfit"); }),
           std::string("cuKernelGetFunction(pig_metric_update_float64_thread): CUDA_ERROR_MADE_UP "
                       "(209): made up"));
  CHECK_EQ(unloaded, 1);
  found_unfit.clear();
}

}  // namespace

int main() {
  test_a_launch_that_a_capture_refuses_is_not_the_last();
  test_before_the_kernels_are_loaded();
  test_streams_and_captures_have_slots_of_their_own();
  test_the_per_thread_stream_has_a_slot_for_each_thread();
  test_the_memory_of_a_launcher_that_is_gone_is_used_again();
  test_memory_that_a_kernel_may_still_write_is_not_used_again();
  test_kernels_that_cannot_be_had();
}
