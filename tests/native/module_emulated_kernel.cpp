// SPDX-License-Identifier: Apache-2.0
//
// The metric kernels for the simulated CUDA driver (_simulated_cuda.on_launch): the real ones, run
// at their launch on emulated blocks, as many as the test wants.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "emulated_cuda.h"
#include "metrics/metric_kernel.cu"

namespace py = pybind11;

namespace {

unsigned blocks_of_update = 1;
std::mt19937 order;

std::mutex one_at_a_time;  ///< whoever launches it

void run(unsigned blocks, const std::function<void()>& kernel) {
  const std::lock_guard lock(one_at_a_time);
  emulated::Machine machine;
  machine.launch(blocks, kernel);
  // Another one where the order of blocks can matter.
  size_t last = 0;
  machine.run([&](const std::vector<size_t>& able, emulated::Stop why) {
    if (why != emulated::Stop::kWaits || !std::ranges::binary_search(able, last))
      last = able[order() % able.size()];
    return last;
  });
}

template <typename Parameters, void (*kernel)(Parameters)>
void update(void** parameters) {
  const auto& p = *static_cast<const Parameters*>(parameters[0]);
  run(blocks_of_update, [&] { kernel(p); });
}

void scalar(void** parameters) {
  const auto& p = *static_cast<const pig::metrics::ScalarParameters*>(parameters[0]);
  run(1, [&] { pig_metric_scalar(p); });
}

/// By name what `on_launch` takes: the stand-in's address, and the number and size of its
/// parameters.
std::map<std::string, std::tuple<uint64_t, uint64_t, uint64_t>> kernels() {
  std::map<std::string, std::tuple<uint64_t, uint64_t, uint64_t>> all;
  const auto add = [&](const char* name, void (*function)(void**), uint64_t bytes) {
    all[name] = {reinterpret_cast<uint64_t>(function), 1, bytes};
  };
#define ADD_ONE(name, Parameters)                                               \
  add("pig_metric_" #name, update<pig::metrics::Parameters, pig_metric_##name>, \
      sizeof(pig::metrics::Parameters));
#define ADD(name) ADD_ONE(name, UpdateParameters)
#define ADD_BY(name) ADD(name##_thread) ADD(name##_warp) ADD(name##_block)
#define ADD_ALL(format) ADD_BY(update_##format) ADD_BY(cross_entropy_##format)
  ADD_ALL(float64)
  ADD_ALL(float32)
  ADD_ALL(float16)
  ADD_ALL(bfloat16)
  ADD_ONE(values, ValuesParameters)
  ADD_ONE(rows, RowsParameters)
#undef ADD_ONE
#undef ADD_ALL
#undef ADD_BY
#undef ADD
  add("pig_metric_scalar", scalar, sizeof(pig::metrics::ScalarParameters));
  return all;
}

}  // namespace

PYBIND11_MODULE(_emulated_kernel, module, pybind11::mod_gil_not_used()) {
  module.def("kernels", kernels);
  module.def("set_blocks", [](unsigned blocks) { blocks_of_update = blocks; });
}
