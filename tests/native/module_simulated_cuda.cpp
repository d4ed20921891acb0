// SPDX-License-Identifier: Apache-2.0
//
// The simulated CUDA driver for Python tests: each function of simulated_control.h by its own name,
// the virtual clock as the recorder's, and a DLPack exchange API that knows the test's streams.
//
// Where a function's last parameter is where the answer goes, Python gets it returned, after the
// driver's result if there is one. All run without the interpreter's lock: some wait for another
// thread.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/dlpack.h"
#include "metrics/cpu_scan.h"
#include "metrics/kernel_store.h"
#include "native_module.h"
#include "simulated_control.h"

namespace py = pybind11;

namespace {

sim::Control control;

void load(const std::string& path) {
  if (const std::string error = control.load(path); !error.empty()) throw py::import_error(error);
}

template <typename Number>
Number to_python(Number value) {
  return value;
}
template <typename Number, size_t... I>
py::tuple numbers(const Number* values, std::index_sequence<I...>) {
  return py::make_tuple(values[I]...);
}
py::tuple to_python(const sim::CallView& call) {
  return py::make_tuple(call.function, call.result, call.thread, call.host_ns,
                        numbers(call.arguments, std::make_index_sequence<4>()));
}
py::tuple to_python(const sim::RecordView& record) {
  const auto if_done = [&](int64_t ns) -> py::object {
    if (!record.done) return py::none();
    return py::int_(ns);
  };
  return py::make_tuple(record.event, record.stream, record.thread, record.host_ns, record.device,
                        if_done(record.device_ns), if_done(record.stamp_ns),
                        if_done(record.done_host_ns));
}
py::tuple to_python(const sim::LaunchView& launch) {
  return py::make_tuple(launch.kernel, numbers(launch.grid, std::make_index_sequence<3>()),
                        numbers(launch.block, std::make_index_sequence<3>()), launch.shared_bytes,
                        launch.stream, launch.thread, launch.host_ns);
}

template <typename Parameter>
constexpr bool is_answer =
    std::is_pointer_v<Parameter> && !std::is_const_v<std::remove_pointer_t<Parameter>>;

template <typename... Parameters>
struct LastOf {
  using Type = void;
};
template <typename First, typename... Rest>
struct LastOf<First, Rest...> {
  using Type = std::tuple_element_t<sizeof...(Rest), std::tuple<First, Rest...>>;
};

template <typename Result, typename... Parameters>
using Function = Result (*)(Parameters...);

template <typename Body>
auto unlocked(Body body) {
  const py::gil_scoped_release release;
  return body();
}

template <typename Result, typename... Parameters, size_t... I>
void bind_answering(py::module_& module, const char* name,
                    Function<Result, Parameters...> sim::Control::* member,
                    std::index_sequence<I...>) {
  using All = std::tuple<Parameters...>;
  using Answer = std::remove_pointer_t<typename LastOf<Parameters...>::Type>;
  module.def(name, [member](std::tuple_element_t<I, All>... arguments) {
    Answer answer{};
    if constexpr (std::is_void_v<Result>) {
      unlocked([&] { (control.*member)(arguments..., &answer); });
      return to_python(answer);
    } else {
      const Result result = unlocked([&] { return (control.*member)(arguments..., &answer); });
      return py::make_tuple(result, to_python(answer));
    }
  });
}

template <typename Result, typename... Parameters>
void bind(py::module_& module, const char* name,
          Function<Result, Parameters...> sim::Control::* member) {
  if constexpr (is_answer<typename LastOf<Parameters...>::Type>) {
    bind_answering(module, name, member, std::make_index_sequence<sizeof...(Parameters) - 1>());
  } else {
    module.def(
        name, [member](Parameters... arguments) { return (control.*member)(arguments...); },
        py::call_guard<py::gil_scoped_release>());
  }
}

// The exchange API --------------------------------------------------------------------------------

std::atomic<uint64_t> epoch{1};  ///< grows when all threads' streams are forgotten
std::atomic<bool> streams_fail{false};

std::map<int32_t, uint64_t>& current_streams() {
  thread_local std::map<int32_t, uint64_t> streams;
  thread_local uint64_t streams_epoch = 0;
  if (streams_epoch != epoch) {
    streams.clear();
    streams_epoch = epoch;
  }
  return streams;
}

int current_work_stream(pig::dlpack::DeviceType type, int32_t device, void** stream) {
  if (streams_fail) {
    const py::gil_scoped_acquire gil;
    PyErr_SetString(PyExc_RuntimeError, "the test made current_work_stream fail");
    return -1;
  }
  const auto& streams = current_streams();
  const auto found = streams.find(device);
  const bool known = type == pig::dlpack::kCuda && found != streams.end();
  *stream = known ? reinterpret_cast<void*>(found->second) : nullptr;
  return 0;
}

pig::dlpack::ExchangeApi exchange_api = {{{pig::dlpack::kMajorVersion, 3}, nullptr},
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         current_work_stream};

// Tensors that pass for a GPU's
// --------------------------------------------------------------------

const pig::dlpack::ExchangeApi* torch_api = nullptr;
int32_t device_of_tensors = 0;

/// PyTorch's own view of a tensor in host memory, said to be on a device.
int tensor_on_device(void* object, pig::dlpack::Tensor* out) {
  const int result = torch_api->tensor_from_py_object(object, out);
  out->device = {pig::dlpack::kCuda, device_of_tensors};
  return result;
}

pig::dlpack::ExchangeApi device_api = {{{pig::dlpack::kMajorVersion, 3}, nullptr},
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       tensor_on_device,
                                       current_work_stream};

py::capsule device_api_capsule(const py::capsule& of_torch) {
  torch_api = static_cast<const pig::dlpack::ExchangeApi*>(of_torch.get_pointer());
  return py::capsule(&device_api, pig::dlpack::kCapsuleName);
}

// What the kernels of the metrics do, at once and on the CPU
// ----------------------------------------

namespace metrics = pig::metrics;

std::mutex metric_kernels;  ///< one of them runs at a time, whoever launches it

void publish(const metrics::LaunchParameters& p) {
  const auto number = static_cast<unsigned>(++p.scratch->sequence);
  metrics::publish_words(p, number, metrics::kMaxScalars, 0, 1);
}

void run_update(void** parameters) {
  const auto& p = *static_cast<const metrics::UpdateParameters*>(parameters[0]);
  const std::lock_guard lock(metric_kernels);
  metrics::State& state = *p.launch.state;
  std::vector<metrics::ConfusionCell> cells(p.batch.confusion != 0 ? p.batch.rows : 0);
  metrics::Totals found = metrics::scan_on_cpu(p.batch, cells, 1);
  metrics::fold_update(p.batch, found, state);
  for (const metrics::ConfusionCell& cell : cells)
    if (cell.target >= 0)
      metrics::confusion_of(state)[cell.target * p.batch.classes + cell.predicted] += cell.weight;
  publish(p.launch);
}

void run_scalar(void** parameters) {
  const auto& p = *static_cast<const metrics::ScalarParameters*>(parameters[0]);
  const std::lock_guard lock(metric_kernels);
  const double value = p.value == nullptr ? p.number : metrics::load_real(p.value, p.format, 0);
  metrics::fold_number(value, p.ema, p.launch.state->scalars[p.slot]);
  publish(p.launch);
}

template <typename Parameters>
void run_elements(void** parameters) {
  const auto& p = *static_cast<const Parameters*>(parameters[0]);
  const std::lock_guard lock(metric_kernels);
  const double shift = Parameters::kIsUpdate ? 0 : metrics::shift_of(p.batch);
  auto found = metrics::scan_elements(p, shift, 1);
  p.fold(found, shift, *p.launch.state);
  publish(p.launch);
}

void run_metric_kernels() {
  const auto run = [](const std::string& name, void (*kernel)(void**), uint64_t bytes) {
    control.on_launch(name.c_str(), reinterpret_cast<uint64_t>(kernel), 1, bytes);
  };
  for (const bool cross_entropy : {false, true})
    for (int format = metrics::kFloat64; format <= metrics::kBfloat16; ++format)
      for (int by = 0; by < metrics::kRowsByCount; ++by)
        run(metrics::kernel_name(cross_entropy, static_cast<metrics::Format>(format),
                                 static_cast<metrics::RowsBy>(by)),
            run_update, sizeof(metrics::UpdateParameters));
  run("pig_metric_scalar", run_scalar, sizeof(metrics::ScalarParameters));
  run("pig_metric_values", run_elements<metrics::ValuesParameters>,
      sizeof(metrics::ValuesParameters));
  run("pig_metric_rows", run_elements<metrics::RowsParameters>, sizeof(metrics::RowsParameters));
}

void reset_exchange_api() {
  ++epoch;
  streams_fail = false;
  device_of_tensors = 0;
}

}  // namespace

PYBIND11_MODULE(_simulated_cuda, module, pybind11::mod_gil_not_used()) {
  module.def("load", load);
#define BIND(type, name, parameters) bind(module, #name, &sim::Control::name);
  SIM_CONTROLS(BIND)
#undef BIND

  module.def("install_clock", [] { inject_clock(control.host_ns); });
  module.def("remove_clock", [] { inject_clock(nullptr); });
  module.def("detach", detach_devices);

  module.def("exchange_api_capsule",
             [] { return py::capsule(&exchange_api, pig::dlpack::kCapsuleName); });
  module.def("reset_exchange_api", reset_exchange_api);
  module.def("set_current_stream",
             [](int32_t device, uint64_t stream) { current_streams()[device] = stream; });
  module.def("current_stream", [](int32_t device) { return current_streams()[device]; });
  module.def("fail_current_stream", [](bool fail) { streams_fail = fail; });

  module.def("device_api_capsule", device_api_capsule);
  module.def("set_device_of_tensors", [](int32_t device) { device_of_tensors = device; });
  module.def("run_metric_kernels", run_metric_kernels);
}
