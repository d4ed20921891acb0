// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/dlpack.h"
#include "hot/nvtx_range.h"
#include "metrics/cpu_scan.h"
#include "metrics/kernel_store.h"
#include "metrics/kernel_text.h"
#include "metrics/metric_accumulator.h"
#include "python/bindings.h"
#include "python/gil_release.h"
#include "record/parts.h"

namespace py = pybind11;

namespace pig::metrics {
namespace {

/// What an update did, for Python: whether a reading is due; nothing where it was not done, and
/// Python says what is wrong with the tensors, or adds them itself.
using Outcome = std::optional<bool>;

/// What was asked of PyTorch once: its tensor type, and the exchange API.
struct Torch {
  PyObject* tensor_type = nullptr;
  PyObject* is_neg = nullptr;
  const dlpack::ExchangeApi* api = nullptr;
  PyObject* get_num_threads = nullptr;
  PyObject* record_stream = nullptr;
};
Torch torch;

/// False where this torch has no exchange API that we know.
bool set_torch(const py::object& tensor_type, const py::object& capsule,
               const py::object& get_num_threads, const py::object& record_stream) {
  auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsuleName));
  if (api == nullptr) throw py::error_already_set();
  if (api->header.version.major != dlpack::kMajorVersion || api->tensor_from_py_object == nullptr)
    return false;
  torch = {py::object(tensor_type).release().ptr(),
           py::object(tensor_type.attr("is_neg")).release().ptr(), api,
           py::object(get_num_threads).release().ptr(), py::object(record_stream).release().ptr()};
  return true;
}

/// A view of a plain torch.Tensor. Nothing for a subclass, which may hold its numbers elsewhere,
/// and for a tensor that has none, as those that stand for another one inside a transformation.
std::optional<dlpack::Tensor> view_of(py::handle object) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) != torch.tensor_type) return std::nullopt;
  dlpack::Tensor tensor;
  if (torch.api->tensor_from_py_object(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (tensor.data == nullptr)
    for (int dim = 0;; ++dim) {
      if (dim == tensor.ndim) return std::nullopt;
      if (tensor.shape[dim] == 0) break;
    }
  return tensor;
}

/// The same for numbers with a sign: nothing for a view that stands for the negative of what is
/// stored (the imaginary part of a conjugate), which the exchange API does not tell.
std::optional<dlpack::Tensor> view_of_reals(py::handle object) {
  auto tensor = view_of(object);
  if (!tensor) return std::nullopt;
  PyObject* const answer = PyObject_CallOneArg(torch.is_neg, object.ptr());
  Py_XDECREF(answer);  // True and False live on
  if (answer == nullptr) PyErr_Clear();
  return answer == Py_False ? tensor : std::nullopt;
}

bool on_cpu(const dlpack::Tensor& tensor) { return tensor.device.type == dlpack::kCpu; }

/// The state in a tensor's memory, if it is one for these options.
State* state_of(const MetricOptions& options, const dlpack::Tensor& tensor) {
  if (tensor.ndim != 1 || tensor.dtype.bits != 8 || tensor.strides[0] != 1 ||
      static_cast<U64>(tensor.shape[0]) != options.state_bytes())
    return nullptr;
  return static_cast<State*>(const_cast<void*>(data_of(tensor)));
}

int num_threads() {
  PyObject* answer = PyObject_CallNoArgs(torch.get_num_threads);
  const long threads = answer != nullptr ? PyLong_AsLong(answer) : -1;
  Py_XDECREF(answer);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return threads > 0 && threads < std::numeric_limits<int>::max() ? static_cast<int>(threads) : 1;
}

bool on_cuda(const dlpack::Tensor& tensor) { return tensor.device.type == dlpack::kCuda; }

/// The calling thread's current stream on a tensor's device.
std::optional<cuda::Stream> stream_of(const dlpack::Tensor& tensor) {
  if (torch.api->current_work_stream == nullptr) return std::nullopt;
  void* stream = nullptr;
  if (torch.api->current_work_stream(tensor.device.type, tensor.device.id, &stream) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  return static_cast<cuda::Stream>(stream);
}

/// Whether the current stream on a tensor's device is being captured; nothing where that is not to
/// be learnt here. An error of the driver is not: who uses the device next will see it.
std::optional<bool> is_capturing(py::handle tensor) {
  const auto view = view_of(tensor);
  if (!view || !on_cuda(*view)) return std::nullopt;
  const auto stream = stream_of(*view);
  if (!stream) return std::nullopt;
  const GilRelease released;
  const cuda::Driver* const driver = KernelStore::instance().driver();
  if (driver == nullptr) return std::nullopt;
  return captures(*driver, *stream);
}

/// The scratch in a tensor's memory, or null. Behind it lie the weights of the classes.
Scratch* scratch_of(const MetricOptions& options, py::handle tensor) {
  if (tensor.is_none()) return nullptr;
  const auto view = view_of(tensor);
  if (!view || !on_cuda(*view) || view->ndim != 1 ||
      static_cast<U64>(view->shape[0]) !=
          sizeof(Scratch) + options.class_weight.size() * sizeof(double))
    return nullptr;
  return static_cast<Scratch*>(const_cast<void*>(data_of(*view)));
}

/// Where the state of an update lies.
struct StatePlace {
  State* state;
  dlpack::Tensor view;
  py::handle tensor;
  py::handle scratch;
};

std::optional<StatePlace> place_of(const MetricAccumulator& accumulator, py::handle state_tensor,
                                   py::handle scratch_tensor = {}) {
  const auto view = view_of(state_tensor);
  State* const state = view ? state_of(accumulator.options(), *view) : nullptr;
  if (state == nullptr) return std::nullopt;
  return StatePlace{state, *view, state_tensor, scratch_tensor};
}

/// The state in a tensor in host memory, or null.
State* host_state_of(const MetricAccumulator& accumulator, py::handle state_tensor) {
  const auto place = place_of(accumulator, state_tensor);
  return place && on_cpu(place->view) ? place->state : nullptr;
}

/// PyTorch must not give the memory to anyone else before the current stream is done with it.
void record_stream(const StatePlace& place) {
  PyObject* const recorded = PyObject_CallFunctionObjArgs(torch.record_stream, place.tensor.ptr(),
                                                          place.scratch.ptr(), nullptr);
  Py_XDECREF(recorded);
  if (recorded != nullptr) return;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
  PyErr_Clear();
}

/// Whether an update in host memory takes longer than giving the GIL away and getting it back.
bool takes_long(const ScalarParameters&) { return false; }
template <typename Update>
bool takes_long(const Update& update) {
  return is_long(update.batch);
}

/// Does an update. Its tensors are those of the caller's arguments, which stay alive. It is
/// launched without the GIL: the driver blocks while the stream is full, and perhaps only another
/// thread of the program can end that.
template <typename Update>
Outcome add(MetricAccumulator& accumulator, const StatePlace& place, const Update& update) {
  bool added = false;
  if (on_cuda(place.view)) {
    Scratch* const scratch = scratch_of(accumulator.options(), place.scratch);
    const auto stream = stream_of(place.view);
    if (scratch == nullptr || !stream) return std::nullopt;
    if (accumulator.changes_stream(*stream)) record_stream(place);
    const GilRelease released;
    added = accumulator.launch(update, {place.state, scratch, place.view.device.id, *stream});
  } else if (!on_cpu(place.view)) {
    return std::nullopt;
  } else if (!takes_long(update)) {
    added = accumulator.add(update, *place.state, 1);
  } else {
    const int threads = num_threads();
    const GilRelease released;
    added = accumulator.add(update, *place.state, threads);
  }
  if (!added) return std::nullopt;
  return accumulator.reading_is_due();
}

Outcome update(MetricAccumulator& accumulator, py::handle state_tensor, py::handle scratch_tensor,
               py::handle logits_tensor, py::handle target_tensor, py::handle loss_tensor,
               py::handle weight_tensor) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  const auto logits = view_of_reals(logits_tensor);
  const auto target = view_of(target_tensor);
  if (!place || !logits || !target || !same_device(place->view, *logits)) return std::nullopt;
  std::optional<dlpack::Tensor> loss, weight;
  if (!loss_tensor.is_none() && !(loss = view_of_reals(loss_tensor))) return std::nullopt;
  if (!weight_tensor.is_none() && !(weight = view_of_reals(weight_tensor))) return std::nullopt;
  const std::optional<Batch> batch =
      make_batch(accumulator.options(), *logits, *target, loss ? &*loss : nullptr,
                 weight ? &*weight : nullptr);
  return batch ? add(accumulator, *place, UpdateParameters{{}, *batch}) : std::nullopt;
}

/// Tensors of an update that are read element by element; nothing where one of them is not for
/// native code, or is elsewhere than the state.
template <size_t kCount>
std::optional<ElementBatch> elements_of(const StatePlace& place,
                                        const std::array<py::handle, kCount>& tensors) {
  std::array<dlpack::Tensor, kCount> views;
  std::array<const dlpack::Tensor*, kCount> pointers{};
  for (size_t i = 0; i < kCount; ++i) {
    if (tensors[i].is_none()) continue;
    const auto view = view_of_reals(tensors[i]);
    if (!view || !same_device(*view, place.view)) return std::nullopt;
    views[i] = *view;
    pointers[i] = &views[i];
  }
  return make_element_batch(pointers);
}

Outcome update_scalar(MetricAccumulator& accumulator, py::handle state_tensor,
                      py::handle scratch_tensor, int slot, py::handle value, py::handle weight) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  if (!place || slot < 0 || slot >= kMaxScalars || value.is_none()) return std::nullopt;
  const double ema = accumulator.options().ema;
  ScalarParameters update{{}, nullptr, kNone, slot, 0, ema};
  bool is_single = weight.is_none();
  if (is_single && PyFloat_CheckExact(value.ptr())) {
    update.number = PyFloat_AS_DOUBLE(value.ptr());
  } else if (is_single && PyLong_CheckExact(value.ptr())) {
    update.number = PyLong_AsDouble(value.ptr());
    if (update.number == -1 && PyErr_Occurred() != nullptr) {  // too large
      PyErr_Clear();
      return std::nullopt;
    }
  } else {
    const auto values = elements_of<kValueOperands>(*place, {value, weight});
    if (!values) return std::nullopt;
    is_single = is_single && values->elements == 1;
    if (!is_single) return add(accumulator, *place, ValuesParameters{{}, *values, ema, slot});
    update.value = values->operands[kValue].data;
    update.format = values->operands[kValue].format;
  }
  return add(accumulator, *place, update);
}

Outcome update_rows(MetricAccumulator& accumulator, py::handle state_tensor,
                    py::handle scratch_tensor, py::handle loss, py::handle correct, py::handle rank,
                    py::handle entropy, py::handle weight, py::handle mask) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  const bool says_anything =
      !loss.is_none() || !correct.is_none() || !rank.is_none() || !entropy.is_none();
  if (!place || !says_anything || (!correct.is_none() && !rank.is_none())) return std::nullopt;
  const auto rows = elements_of<kRowOperands>(*place, {loss, correct, rank, entropy, weight, mask});
  if (!rows) return std::nullopt;
  return add(accumulator, *place,
             RowsParameters{{}, *rows, batch_of_rows(accumulator.options(), *rows)});
}

py::object bytes_of(const std::vector<uint8_t>& bytes) {
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

py::object read(MetricAccumulator& accumulator, py::handle state_tensor) {
  const auto place = place_of(accumulator, state_tensor);
  if (!place) return py::none();
  std::vector<uint8_t> bytes(accumulator.options().reading_bytes());
  if (!on_cpu(place->view)) {
    U64 lost = 0;
    if (!accumulator.copy_snapshot(bytes, lost)) return py::none();
    return py::make_tuple(bytes_of(bytes), lost);
  }
  if (!accumulator.copy(*place->state, bytes)) return py::none();
  return py::make_tuple(bytes_of(bytes), 0);
}

/// Copies the whole state in host memory; false where that can't be done now.
bool copy(MetricAccumulator& accumulator, py::handle state_tensor, const py::buffer& into) {
  State* const state = host_state_of(accumulator, state_tensor);
  const py::buffer_info buffer = into.request(true);
  if (state == nullptr ||
      static_cast<U64>(buffer.size * buffer.itemsize) != accumulator.options().state_bytes())
    return false;
  const GilRelease released;
  return accumulator.copy(*state,
                          {static_cast<uint8_t*>(buffer.ptr), accumulator.options().state_bytes()});
}

std::optional<U64> reset(MetricAccumulator& accumulator, py::handle state_tensor) {
  State* const state = host_state_of(accumulator, state_tensor);
  if (state == nullptr) return std::nullopt;
  const GilRelease released;
  return accumulator.reset(*state);
}

/// Serial number and index of a step.
py::object step_pair(uint32_t serial) {
  if (serial == kNoStep) return py::none();
  return py::make_tuple(serial, parts().steps().index_of(serial));
}

std::unique_ptr<MetricAccumulator> make(const std::optional<MetricAccumulator::Counts>& counts,
                                        const std::vector<I64>& topk, I64 num_classes,
                                        bool confusion, I64 ignore_index, int class_dim,
                                        std::optional<double> ema, bool cross_entropy,
                                        double label_smoothing,
                                        const std::vector<double>& class_weight,
                                        double class_weight_sum) {
  MetricOptions options;
  options.ema = ema.value_or(0);
  if (topk.size() > kMaxTopk) throw std::invalid_argument("topk has too many numbers");
  for (const I64 k : topk) options.topk[static_cast<size_t>(options.topk_count++)] = k;
  options.classes = num_classes;
  options.confusion = confusion;
  options.ignore_index = ignore_index;
  options.class_dim = class_dim;
  options.cross_entropy = cross_entropy;
  options.label_smoothing = label_smoothing;
  options.class_weight = class_weight;
  options.class_weight_sum = class_weight_sum;
  return std::make_unique<MetricAccumulator>(options, counts);
}

/// Writes a reading into the recording that is active, and shows it as NVTX marks. Values beyond
/// the bounds are counted, not written.
void append_reading(
    uint64_t update,
    const std::vector<std::tuple<std::string, double, std::optional<uint32_t>>>& values) {
  std::vector<MetricSeries::Value> reading;
  for (const auto& [name, value, step] : values)
    reading.push_back({name, value, step.value_or(kNoStep)});
  parts().metrics.append(update, reading);
  if (PIG_UNLIKELY(nvtx_active))
    for (const auto& each : reading) mark_nvtx_value(each.name, each.value);
}

/// What torch operations have added to the state: by `slot` a running value, without one an update.
void end_other(MetricAccumulator& accumulator, py::handle state_tensor, bool added,
               std::optional<int> slot, bool is_counted) {
  using Addition = MetricAccumulator::Addition;
  const auto state_view = view_of(state_tensor);
  const auto stream = state_view && on_cuda(*state_view) ? stream_of(*state_view) : std::nullopt;
  const GilRelease released;
  accumulator.end_other(!added ? Addition::kNothing
                        : slot ? Addition::kScalar
                               : Addition::kUpdate,
                        slot.value_or(0), is_counted, stream);
}

}  // namespace
}  // namespace pig::metrics

void pig::add_metric_functions(py::module_& module) {
  using namespace pig::metrics;
  py::class_<MetricAccumulator>(module, "MetricAccumulator")
      .def(py::init(&make), py::kw_only(), py::arg("counts"), py::arg("topk"),
           py::arg("num_classes"), py::arg("confusion"), py::arg("ignore_index"),
           py::arg("class_dim"), py::arg("ema"), py::arg("cross_entropy"),
           py::arg("label_smoothing"), py::arg("class_weight"), py::arg("class_weight_sum"))
      .def("update", &update, py::arg("state"), py::arg("scratch"), py::arg("logits"),
           py::arg("target"), py::arg("loss"), py::arg("weight"))
      .def("update_scalar", &update_scalar, py::arg("state"), py::arg("scratch"), py::arg("slot"),
           py::arg("value"), py::arg("weight"))
      .def("update_rows", &update_rows, py::arg("state"), py::arg("scratch"), py::arg("loss"),
           py::arg("correct"), py::arg("rank"), py::arg("entropy"), py::arg("weight"),
           py::arg("mask"))
      .def("read", &read, py::arg("state"))
      .def("copy", &copy, py::arg("state"), py::arg("into"))
      .def("reset", &reset, py::arg("state"))
      .def("launch_error", &MetricAccumulator::launch_error)
      .def("was_captured", &MetricAccumulator::was_captured)
      .def("begin_other", &MetricAccumulator::begin_other, py::call_guard<GilRelease>())
      .def("end_other", &end_other, py::arg("state"), py::arg("added"), py::arg("slot"),
           py::arg("is_counted"))
      .def("replace_counts", &MetricAccumulator::replace_counts, py::arg("counts"),
           py::call_guard<GilRelease>())
      .def("reset_scalars", &MetricAccumulator::reset_scalars)
      .def("counts", &MetricAccumulator::counts)
      .def("take_news", &MetricAccumulator::take_news)
      .def(
          "step_of",
          [](const MetricAccumulator& accumulator, uint64_t update) {
            return step_pair(accumulator.step_of(update));
          },
          py::arg("update"))
      .def(
          "step_of_scalar",
          [](const MetricAccumulator& accumulator, int slot, uint64_t number) {
            return step_pair(accumulator.step_of_scalar(slot, number));
          },
          py::arg("slot"), py::arg("number"));
  module.attr("METRIC_SCRATCH_BYTES") = sizeof(Scratch);
  module.attr("METRIC_SCRATCH_LOST_WORD") = offsetof(Scratch, lost) / sizeof(U64);
  module.def("set_torch", &set_torch, py::arg("tensor_type"), py::arg("exchange_api"),
             py::arg("get_num_threads"), py::arg("record_stream"));
  module.def("is_capturing", &is_capturing, py::arg("tensor"));
#define PIG_NAMED(name, folder, file) {folder file, name},
  module.def("metric_kernel_texts", [] {
    return std::vector<std::pair<const char*, const char*>>{PIG_KERNEL_TEXTS(PIG_NAMED)};
  });
#undef PIG_NAMED
  module.def(
      "compute_capability",
      [](int device) {
        std::string error;
        int capability = 0;
        {
          const GilRelease released;
          capability = KernelStore::instance().compute_capability(device, error);
        }
        if (!error.empty()) throw std::runtime_error(error);
        return capability;
      },
      py::arg("device"));
  module.def(
      "load_metric_kernels",
      [](int device, std::string code) {
        const GilRelease released;
        KernelStore::instance().load(device, std::move(code));
      },
      py::arg("device"), py::arg("code"));
  module.def(
      "fail_metric_kernels",
      [](int device, std::string reason) {
        const GilRelease released;
        KernelStore::instance().fail(device, std::move(reason));
      },
      py::arg("device"), py::arg("reason"));
  module.def(
      "wait_for_metric_kernels",
      [](double timeout_s) {
        const GilRelease released;
        return KernelStore::instance().wait(
            std::chrono::nanoseconds(static_cast<int64_t>(timeout_s * 1e9)));
      },
      py::arg("timeout_s"));
  module.def("append_reading", &append_reading, py::arg("update"), py::arg("values"));
}
