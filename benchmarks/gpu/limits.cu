// SPDX-License-Identifier: Apache-2.0
//
// The physical limits that the project's goals rest on: what the CUDA calls that time a phase cost
// the host and the device, and how finely and how steadily the device's clock goes.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 limits.cu -o limits -ldl
//   ./limits                                      # about 20 s
//   CUDA_DEVICE_MAX_CONNECTIONS=1 ./limits overlap
//
// Prints one JSON object a line: name, value, unit. Host costs are of calls that are enqueued
// behind a stream on hold, so that the device neither pushes back nor is done already.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr int kCalls = 300;
constexpr int kRounds = 15;
constexpr int kKernels = 200;
constexpr uint64_t kLongestHoldNs = 4'000'000'000;

void check(cudaError_t error, const char* call, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "limits.cu:%d: %s: %s\n", line, call, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

void print(const std::string& name, double value, const char* unit) {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

// Kernels -----------------------------------------------------------------------------------------

__device__ uint64_t device_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ void spin_for(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

__global__ void nothing() {}

__global__ void spin(long long cycles) { spin_for(cycles); }

__global__ void wait_for(const volatile int* flag) {
  const uint64_t begin = device_ns();
  while (*flag == 0 && device_ns() - begin < kLongestHoldNs) __nanosleep(200);
}

__global__ void stamp(uint64_t* out) { *out = device_ns(); }

/// A stamp as it could be made inside a CUDA graph: into the next place of a ring in host memory.
__global__ void stamp_into_ring(uint64_t* ring, unsigned* head, unsigned mask, uint64_t tag) {
  const unsigned place = atomicAdd_system(head, 1u) & mask;
  *reinterpret_cast<ulonglong2*>(ring + 2 * place) = make_ulonglong2(device_ns(), tag);
  __threadfence_system();
}

/// Least and mean step of the device's clock, in ns.
__global__ void clock_steps(uint64_t* out, int steps) {
  const uint64_t first = device_ns();
  uint64_t last = first;
  uint64_t smallest = ~0ull;
  for (int seen = 0; seen < steps;) {
    const uint64_t now = device_ns();
    if (now == last) continue;
    smallest = min(smallest, now - last);
    last = now;
    ++seen;
  }
  out[0] = smallest;
  out[1] = (last - first) / steps;
}

/// A kernel that may begin before the one in front of it has ended (programmatic dependent launch).
__global__ void dependent_spin(long long cycles) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  spin_for(cycles);
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// The machine -------------------------------------------------------------------------------------

/// Keeps a stream from going on until it is released.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) {
    CHECK(cudaHostAlloc(reinterpret_cast<void**>(&flag_), sizeof(int), cudaHostAllocMapped));
    *flag_ = 0;
    int* on_device = nullptr;
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&on_device), flag_, 0));
    wait_for<<<1, 1, 0, stream>>>(on_device);
  }
  void release() { *static_cast<volatile int*>(flag_) = 1; }
  ~Hold() { cudaFreeHost(flag_); }  // the stream has been synchronised
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  int* flag_ = nullptr;
};

/// The driver's functions, which the runtime's go through.
struct DriverCalls {
  CUresult (*event_record)(CUevent, CUstream) = nullptr;
  CUresult (*event_query)(CUevent) = nullptr;
  CUresult (*elapsed_time)(float*, CUevent, CUevent) = nullptr;
  CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
  CUresult (*write_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned) = nullptr;

  DriverCalls() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return;
    find(library, "cuEventRecord", event_record);
    find(library, "cuEventQuery", event_query);
    find(library, "cuEventElapsedTime", elapsed_time);
    find(library, "cuStreamIsCapturing", is_capturing);
    find(library, "cuStreamWriteValue64_v2", write_value);
  }

 private:
  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

/// What all measurements work on.
struct Bench {
  cudaStream_t stream = nullptr;
  cudaStream_t side_stream = nullptr;
  std::vector<cudaEvent_t> timing = std::vector<cudaEvent_t>(2 * kCalls);
  std::vector<cudaEvent_t> untimed = std::vector<cudaEvent_t>(2 * kCalls);
  uint64_t* device_memory = nullptr;
  uint64_t* host_memory = nullptr;  ///< mapped
  uint64_t* host_memory_on_device = nullptr;
  unsigned* ring_head_on_device = nullptr;
  DriverCalls driver;

  Bench() {
    constexpr size_t kBytes = 1 << 20;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side_stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : timing) CHECK(cudaEventCreate(&event));
    for (cudaEvent_t& event : untimed)
      CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaMalloc(reinterpret_cast<void**>(&device_memory), kBytes));
    host_memory = mapped(kBytes, host_memory_on_device);
    *mapped(sizeof(unsigned), ring_head_on_device) = 0;
    for (int i = 0; i < 50; ++i) nothing<<<1, 1, 0, stream>>>();
    CHECK(cudaDeviceSynchronize());
  }

  template <typename T>
  static T* mapped(size_t bytes, T*& on_device) {
    T* memory = nullptr;
    CHECK(cudaHostAlloc(reinterpret_cast<void**>(&memory), bytes, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&on_device), memory, 0));
    return memory;
  }
};

float elapsed_ms(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  return ms;
}

// What calls cost the host ------------------------------------------------------------------------

using Call = std::function<void(int)>;

void host_cost(Bench& bench, const std::string& name, int calls, bool behind_hold,
               const Call& call) {
  std::vector<double> costs;
  for (int round = 0; round < kRounds; ++round) {
    Hold hold(bench.stream);
    if (!behind_hold) {
      hold.release();
      CHECK(cudaStreamSynchronize(bench.stream));
    }
    const uint64_t begin = now_ns();
    for (int i = 0; i < calls; ++i) call(i);
    costs.push_back(static_cast<double>(now_ns() - begin) / calls);
    hold.release();
    CHECK(cudaStreamSynchronize(bench.stream));
  }
  print("host: " + name, median(costs), "ns");
  print("host: " + name + ", least", least(costs), "ns");
}

void host_costs(Bench& b) {
  const auto enqueued = [&](const char* name, const Call& call) {
    host_cost(b, name, kCalls, true, call);
  };
  const auto idle = [&](const char* name, const Call& call) {
    host_cost(b, name, kCalls, false, call);
  };
  const auto record = [&](const std::vector<cudaEvent_t>& events, int i) {
    cudaEventRecord(events[static_cast<size_t>(i)], b.stream);
  };

  enqueued("null kernel launch", [&](int) { nothing<<<1, 1, 0, b.stream>>>(); });
  enqueued("cudaEventRecord, timing", [&](int i) { record(b.timing, i); });
  enqueued("cudaEventRecord, no timing", [&](int i) { record(b.untimed, i); });
  enqueued("cuEventRecord, timing",
           [&](int i) { b.driver.event_record(b.timing[static_cast<size_t>(i)], b.stream); });
  enqueued("kernel and record, timing", [&](int i) {
    nothing<<<1, 1, 0, b.stream>>>();
    record(b.timing, i);
  });
  enqueued("kernel and record, no timing", [&](int i) {
    nothing<<<1, 1, 0, b.stream>>>();
    record(b.untimed, i);
  });
  enqueued("globaltimer kernel launch",
           [&](int i) { stamp<<<1, 1, 0, b.stream>>>(b.host_memory_on_device + i); });
  enqueued("ring stamp kernel launch", [&](int i) {
    stamp_into_ring<<<1, 1, 0, b.stream>>>(b.host_memory_on_device, b.ring_head_on_device, 4095,
                                           static_cast<uint64_t>(i));
  });
  if (b.driver.write_value != nullptr)
    enqueued("cuStreamWriteValue64", [&](int i) {
      b.driver.write_value(b.stream, reinterpret_cast<CUdeviceptr>(b.device_memory + i),
                           static_cast<cuuint64_t>(i), 0);
    });
  enqueued("cudaStreamIsCapturing", [&](int) {
    cudaStreamCaptureStatus status;
    cudaStreamIsCapturing(b.stream, &status);
  });
  enqueued("cuStreamIsCapturing", [&](int) {
    CUstreamCaptureStatus status;
    b.driver.is_capturing(b.stream, &status);
  });
  enqueued("cudaEventQuery, not ready", [&](int i) {
    if (i == 0) record(b.timing, 0);
    cudaEventQuery(b.timing[0]);
  });
  cudaGetLastError();  // "not ready" is none
  host_cost(b, "cudaLaunchHostFunc", 100, true,
            [&](int) { cudaLaunchHostFunc(b.stream, [](void*) {}, nullptr); });

  for (const cudaEvent_t event : b.timing) CHECK(cudaEventRecord(event, b.stream));
  CHECK(cudaStreamSynchronize(b.stream));
  const auto done = [&](int i) { return b.timing[static_cast<size_t>(i)]; };
  float ms = 0;
  idle("cudaEventQuery, ready", [&](int i) { cudaEventQuery(done(i)); });
  idle("cuEventQuery, ready", [&](int i) { b.driver.event_query(done(i)); });
  idle("cudaEventElapsedTime",
       [&](int i) { CHECK(cudaEventElapsedTime(&ms, done(i), done(i + 1))); });
  idle("cuEventElapsedTime", [&](int i) { b.driver.elapsed_time(&ms, done(i), done(i + 1)); });
  idle("cudaEventCreate and Destroy", [&](int) {
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaEventDestroy(event);
  });
  idle("cudaGetDevice", [&](int) {
    int device;
    cudaGetDevice(&device);
  });
  idle("cudaThreadExchangeStreamCaptureMode, twice", [&](int) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaThreadExchangeStreamCaptureMode(&mode);
  });
}

// What they cost the device -----------------------------------------------------------------------

/// Device time in us of kernels back to back, with something behind each.
double device_us(Bench& b, const std::function<void(int)>& launch, const Call& behind) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    Hold hold(b.stream);
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    launch(-1);
    CHECK(cudaEventRecord(begin, b.stream));
    for (int i = 0; i < kKernels; ++i) {
      launch(i);
      behind(i);
    }
    CHECK(cudaEventRecord(end, b.stream));
    hold.release();
    CHECK(cudaStreamSynchronize(b.stream));
    times.push_back(1e3 * elapsed_ms(begin, end));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
  }
  return median(times);
}

void device_costs(Bench& b, int processors, long long cycles) {
  const auto launch = [&](int) { spin<<<processors, 128, 0, b.stream>>>(cycles); };
  const std::string place = std::to_string(cycles) + " cycles, ";
  const double base_us = device_us(b, launch, [](int) {});
  print("device: spin kernel of " + std::to_string(cycles) + " cycles", base_us / kKernels, "us");
  const auto added = [&](const char* name, const Call& behind) {
    print("device: " + place + name, (device_us(b, launch, behind) - base_us) / kKernels, "us");
  };
  const auto event = [](const std::vector<cudaEvent_t>& events, int i) {
    return events[static_cast<size_t>(i)];
  };
  added("no-timing event", [&](int i) { cudaEventRecord(event(b.untimed, i), b.stream); });
  added("1 timing event", [&](int i) { cudaEventRecord(event(b.timing, i), b.stream); });
  added("2 timing events", [&](int i) {
    cudaEventRecord(event(b.timing, i), b.stream);
    cudaEventRecord(event(b.timing, i + kCalls), b.stream);
  });
  added("null kernel", [&](int) { nothing<<<1, 1, 0, b.stream>>>(); });
  added("globaltimer kernel, device memory",
        [&](int i) { stamp<<<1, 1, 0, b.stream>>>(b.device_memory + i); });
  added("globaltimer kernel, host memory",
        [&](int i) { stamp<<<1, 1, 0, b.stream>>>(b.host_memory_on_device + i); });
  added("ring stamp kernel", [&](int i) {
    stamp_into_ring<<<1, 1, 0, b.stream>>>(b.host_memory_on_device, b.ring_head_on_device, 4095,
                                           static_cast<uint64_t>(i));
  });
  if (b.driver.write_value != nullptr)
    added("cuStreamWriteValue64", [&](int i) {
      b.driver.write_value(b.stream, reinterpret_cast<CUdeviceptr>(b.device_memory + i),
                           static_cast<cuuint64_t>(i), 0);
    });
}

/// What a timing event costs kernels that overlap by programmatic dependent launch.
void dependent_launches(Bench& b, int processors) {
  const auto launch = [&](bool dependent) {
    return [&b, processors, dependent](int) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = static_cast<unsigned>(processors);
      config.blockDim = 128;
      config.stream = b.stream;
      config.attrs = &attribute;
      config.numAttrs = dependent ? 1 : 0;
      CHECK(cudaLaunchKernelEx(&config, dependent_spin, 2000LL));
    };
  };
  const auto nothing_behind = [](int) {};
  const auto event_behind = [&](int i) {
    cudaEventRecord(b.timing[static_cast<size_t>(i)], b.stream);
  };
  print("device: dependent launch, off", device_us(b, launch(false), nothing_behind) / kKernels,
        "us");
  print("device: dependent launch, on", device_us(b, launch(true), nothing_behind) / kKernels,
        "us");
  print("device: dependent launch, on, 1 timing event",
        device_us(b, launch(true), event_behind) / kKernels, "us");
}

// The device's clock ------------------------------------------------------------------------------

void clock_resolution(Bench& b) {
  clock_steps<<<1, 1, 0, b.stream>>>(b.device_memory, 2000);
  uint64_t steps[2];
  CHECK(cudaMemcpyAsync(steps, b.device_memory, sizeof steps, cudaMemcpyDeviceToHost, b.stream));
  CHECK(cudaStreamSynchronize(b.stream));
  print("clock: globaltimer, least step", static_cast<double>(steps[0]), "ns");
  print("clock: globaltimer, mean step", static_cast<double>(steps[1]), "ns");

  std::vector<long> distances;
  for (int round = 0; round < 20; ++round) {
    Hold hold(b.stream);
    for (int i = 0; i < kCalls; ++i) {
      spin<<<1, 1, 0, b.stream>>>(1000 + 37 * i);
      CHECK(cudaEventRecord(b.timing[static_cast<size_t>(i)], b.stream));
    }
    hold.release();
    CHECK(cudaStreamSynchronize(b.stream));
    for (size_t i = 1; i < kCalls; ++i)
      distances.push_back(std::lround(1e6 * elapsed_ms(b.timing[0], b.timing[i])));
  }
  long divisor = 0;
  for (const long distance : distances) divisor = std::gcd(divisor, distance);
  const auto odd =
      std::count_if(distances.begin(), distances.end(), [](long ns) { return ns % 32 != 0; });
  print("clock: events, divisor of all distances", static_cast<double>(divisor), "ns");
  print("clock: events, distances that are no multiple of 32 ns",
        static_cast<double>(odd) / static_cast<double>(distances.size()), "of all");

  std::vector<double> pairs;
  for (int i = 0; i < 200; ++i) {
    CHECK(cudaEventRecord(b.timing[0], b.stream));
    CHECK(cudaEventRecord(b.timing[1], b.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    pairs.push_back(1e3 * elapsed_ms(b.timing[0], b.timing[1]));
  }
  print("clock: two events on an idle stream", median(pairs), "us");
  print("clock: two events on an idle stream, least", least(pairs), "us");
}

/// Both clocks at one moment, give or take half the width.
struct Anchor {
  double host_ns = 0;
  double device_ns = 0;
  double width_ns = 1e18;
};

Anchor kernel_anchor(Bench& b) {
  Anchor best;
  for (int i = 0; i < 50; ++i) {
    volatile uint64_t* stamped = b.host_memory;
    *stamped = 0;
    const uint64_t before = now_ns();
    stamp<<<1, 1, 0, b.side_stream>>>(b.host_memory_on_device);
    while (*stamped == 0) {
    }
    const uint64_t after = now_ns();
    CHECK(cudaStreamSynchronize(b.side_stream));
    const auto width = static_cast<double>(after - before);
    if (width < best.width_ns)
      best = {static_cast<double>(before) + width / 2, static_cast<double>(*stamped), width};
  }
  return best;
}

double event_anchor_width_ns(Bench& b) {
  double best = 1e18;
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = now_ns();
    CHECK(cudaEventRecord(b.timing[0], b.side_stream));
    while (cudaEventQuery(b.timing[0]) == cudaErrorNotReady) {
    }
    best = std::min(best, static_cast<double>(now_ns() - before));
  }
  cudaGetLastError();
  return best;
}

void clock_drift(Bench& b) {
  const Anchor first = kernel_anchor(b);
  const timespec pause{5, 0};
  nanosleep(&pause, nullptr);
  const Anchor second = kernel_anchor(b);
  const double host_ns = second.host_ns - first.host_ns;
  print("clock: anchor by a globaltimer kernel, bracket", first.width_ns / 1e3, "us");
  print("clock: anchor by an event and queries, bracket", event_anchor_width_ns(b) / 1e3, "us");
  print("clock: device against CLOCK_MONOTONIC, drift",
        ((second.device_ns - first.device_ns) / host_ns - 1) * 1e6, "ppm");
  print("clock: uncertainty of the drift", (first.width_ns + second.width_ns) / host_ns * 1e6,
        "ppm");
  timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  print("clock: globaltimer less CLOCK_REALTIME",
        second.device_ns / 1e9 -
            (static_cast<double>(real.tv_sec) + static_cast<double>(real.tv_nsec) / 1e9),
        "s");
}

// Two streams -------------------------------------------------------------------------------------

/// How long two kernels on two streams take, in kernels: 1 when they overlap, 2 when not.
void overlap(Bench& b) {
  constexpr long long kCycles = 2'000'000;
  const auto run = [&](cudaEvent_t event, bool second) {
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      CHECK(cudaDeviceSynchronize());
      const uint64_t begin = now_ns();
      spin<<<8, 128, 0, b.stream>>>(kCycles);
      CHECK(cudaEventRecord(event, b.stream));
      if (second) spin<<<8, 128, 0, b.side_stream>>>(kCycles);
      CHECK(cudaDeviceSynchronize());
      times.push_back(static_cast<double>(now_ns() - begin));
    }
    return median(times);
  };
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const std::string place = std::string("overlap: CUDA_DEVICE_MAX_CONNECTIONS=") +
                            (connections != nullptr ? connections : "unset");
  const double alone = run(b.untimed[0], false);
  print(place + ", no-timing event between", run(b.untimed[0], true) / alone, "kernels");
  print(place + ", timing event between", run(b.timing[0], true) / alone, "kernels");
}

}  // namespace

int main(int count, char** arguments) {
  // A kernel that is loaded at its first launch may have to wait for the device, and so for the
  // hold.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  Bench bench;
  if (count > 1 && std::strcmp(arguments[1], "overlap") == 0) {
    overlap(bench);
    return 0;
  }
  clock_resolution(bench);
  host_costs(bench);
  for (const long long cycles : {2'000LL, 20'000LL})
    device_costs(bench, properties.multiProcessorCount, cycles);
  dependent_launches(bench, properties.multiProcessorCount);
  clock_drift(bench);
  return 0;
}
