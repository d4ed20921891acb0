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
#include "metrics/element_scan.h"
#include "metrics/element_tensors.h"
#include "metrics/kernel_store.h"
#include "metrics/kernel_text.h"
#include "metrics/metric_accumulator.h"
#include "python/bindings.h"
#include "python/gil_release.h"
#include "record/recorder.h"

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

/// From here on it takes longer than giving the GIL away and getting it back.
constexpr U64 kBytesWithoutGil = 4 << 20;

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

/// Launches by `enqueue(scratch, stream)`, without the GIL: the driver blocks while the stream is
/// full, and perhaps only another thread of the program can end that. The tensors are those of the
/// caller's arguments, which stay alive.
template <typename Enqueue>
Outcome launch(MetricAccumulator& accumulator, const dlpack::Tensor& state_view,
               py::handle state_tensor, py::handle scratch_tensor, Enqueue enqueue) {
  Scratch* const scratch = scratch_of(accumulator.options(), scratch_tensor);
  const auto stream = stream_of(state_view);
  if (scratch == nullptr || !stream) return std::nullopt;
  if (accumulator.changes_stream(*stream)) {
    // PyTorch must not give the memory to anyone else before this stream is done with it.
    PyObject* const recorded = PyObject_CallFunctionObjArgs(torch.record_stream, state_tensor.ptr(),
                                                            scratch_tensor.ptr(), nullptr);
    Py_XDECREF(recorded);
    if (recorded == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
      PyErr_Clear();
    }
  }
  bool launched = false;
  {
    const GilRelease released;
    launched = enqueue(scratch, *stream);
  }
  if (!launched) return std::nullopt;
  return accumulator.reading_is_due();
}

Outcome update(MetricAccumulator& accumulator, py::handle state_tensor, py::handle scratch_tensor,
               py::handle logits_tensor, py::handle target_tensor, py::handle loss_tensor,
               py::handle weight_tensor) {
  const auto state_view = view_of(state_tensor);
  const auto logits = view_of_reals(logits_tensor);
  const auto target = view_of(target_tensor);
  if (!state_view || !logits || !target) return std::nullopt;
  std::optional<dlpack::Tensor> loss, weight;
  if (!loss_tensor.is_none() && !(loss = view_of_reals(loss_tensor))) return std::nullopt;
  if (!weight_tensor.is_none() && !(weight = view_of_reals(weight_tensor))) return std::nullopt;
  State* state = state_of(accumulator.options(), *state_view);
  if (state == nullptr || !same_device(*state_view, *logits)) return std::nullopt;
  const std::optional<Batch> batch =
      make_batch(accumulator.options(), *logits, *target, loss ? &*loss : nullptr,
                 weight ? &*weight : nullptr);
  if (!batch) return std::nullopt;
  if (on_cuda(*logits))
    return launch(accumulator, *state_view, state_tensor, scratch_tensor,
                  [&](Scratch* scratch, cuda::Stream stream) {
                    Batch on_device = *batch;
                    if (batch->class_weight != nullptr)
                      on_device.class_weight = reinterpret_cast<const double*>(scratch + 1);
                    return accumulator.launch(on_device, state, scratch, logits->device.id, stream);
                  });
  if (!on_cpu(*logits)) return std::nullopt;
  bool added = false;
  if (bytes_of(*batch) < kBytesWithoutGil) {
    added = accumulator.update(*batch, *state, 1);
  } else {
    const int threads = num_threads();
    const GilRelease released;
    added = accumulator.update(*batch, *state, threads);
  }
  if (!added) return std::nullopt;
  return accumulator.reading_is_due();
}

/// The state in a tensor in host memory, or null.
State* host_state_of(const MetricAccumulator& accumulator, py::handle state_tensor) {
  const auto view = view_of(state_tensor);
  return view && on_cpu(*view) ? state_of(accumulator.options(), *view) : nullptr;
}

/// Where the state of an update lies.
struct StatePlace {
  State* state;
  dlpack::Tensor view;
  py::handle tensor;
  py::handle scratch;
};

std::optional<StatePlace> place_of(const MetricAccumulator& accumulator, py::handle state_tensor,
                                   py::handle scratch_tensor) {
  const auto view = view_of(state_tensor);
  State* const state = view ? state_of(accumulator.options(), *view) : nullptr;
  if (state == nullptr) return std::nullopt;
  return StatePlace{state, *view, state_tensor, scratch_tensor};
}

/// Does an update of tensors that are read element by element: by `enqueue(scratch, device,
/// stream)` on a GPU, by `update(threads)` in host memory, without the GIL where that takes long.
template <typename Update, typename Enqueue>
Outcome update_elements(MetricAccumulator& accumulator, const StatePlace& place,
                        const ElementBatch& batch, Update update, Enqueue enqueue) {
  if (on_cuda(place.view))
    return launch(accumulator, place.view, place.tensor, place.scratch,
                  [&](Scratch* scratch, cuda::Stream stream) {
                    return enqueue(scratch, place.view.device.id, stream);
                  });
  if (!on_cpu(place.view)) return std::nullopt;
  bool added = false;
  if (!is_long(batch)) {
    added = update(1);
  } else {
    const int threads = num_threads();
    const GilRelease released;
    added = update(threads);
  }
  if (!added) return std::nullopt;
  return accumulator.reading_is_due();
}

/// Tensors of an update, as their views; not known where one of them is not for native code, or is
/// elsewhere than the state.
template <size_t kCount>
class Views {
 public:
  Views(const StatePlace& place, const std::array<py::handle, kCount>& tensors) {
    for (size_t i = 0; i < kCount; ++i) {
      if (tensors[i].is_none()) continue;
      const auto view = view_of_reals(tensors[i]);
      if (!view || !same_device(*view, place.view)) {
        are_known_ = false;
        return;
      }
      views_[i] = *view;
      pointers_[i] = &views_[i];
    }
  }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  bool are_known() const { return are_known_; }
  std::optional<ElementBatch> batch(int of_rows = -1) const {
    return make_element_batch(pointers_, of_rows);
  }
  /// The size of the last dimension of the first tensor; 0 where it has none.
  I64 last_size() const {
    const dlpack::Tensor* const first = pointers_[0];
    return first == nullptr || first->ndim == 0 ? 0 : first->shape[first->ndim - 1];
  }

 private:
  bool are_known_ = true;
  std::array<dlpack::Tensor, kCount> views_;
  std::array<const dlpack::Tensor*, kCount> pointers_{};
};

Outcome update_values(MetricAccumulator& accumulator, const StatePlace& place, int slot,
                      const ElementBatch& batch) {
  return update_elements(
      accumulator, place, batch,
      [&](int threads) { return accumulator.update_values(batch, slot, *place.state, threads); },
      [&](Scratch* scratch, int device, cuda::Stream stream) {
        return accumulator.launch_values(batch, slot, place.state, scratch, device, stream);
      });
}

Outcome update_scalar(MetricAccumulator& accumulator, py::handle state_tensor,
                      py::handle scratch_tensor, int slot, py::handle value) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  if (!place || slot < 0 || slot >= kMaxScalars) return std::nullopt;
  double number = 0;
  const void* data = nullptr;
  Format format = kNone;
  if (PyFloat_CheckExact(value.ptr())) {
    number = PyFloat_AS_DOUBLE(value.ptr());
  } else if (PyLong_CheckExact(value.ptr())) {
    number = PyLong_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) {  // too large
      PyErr_Clear();
      return std::nullopt;
    }
  } else {
    const auto tensor = view_of_reals(value);
    if (!tensor || !same_device(*tensor, place->view)) return std::nullopt;
    I64 size = 1;
    for (int dim = 0; dim < tensor->ndim; ++dim) size *= tensor->shape[dim];
    if (size != 1) {
      const std::array<const dlpack::Tensor*, kValueOperands> tensors{&*tensor, nullptr};
      const std::optional<ElementBatch> batch = make_element_batch(tensors);
      return batch ? update_values(accumulator, *place, slot, *batch) : std::nullopt;
    }
    format = format_of(tensor->dtype);
    if (format == kNone) return std::nullopt;
    data = data_of(*tensor);
  }
  if (on_cuda(place->view))
    return launch(accumulator, place->view, state_tensor, scratch_tensor,
                  [&](Scratch* scratch, cuda::Stream stream) {
                    return accumulator.launch_scalar(data, format, number, slot, place->state,
                                                     scratch, place->view.device.id, stream);
                  });
  if (!on_cpu(place->view)) return std::nullopt;
  if (data != nullptr) number = load_real(data, format, 0);
  if (!accumulator.update_scalar(number, slot, *place->state)) return std::nullopt;
  return accumulator.reading_is_due();
}

Outcome update_weighted_scalar(MetricAccumulator& accumulator, py::handle state_tensor,
                               py::handle scratch_tensor, int slot, py::handle value,
                               py::handle weight) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  if (!place || slot < 0 || slot >= kMaxScalars) return std::nullopt;
  const Views<kValueOperands> views(*place, {value, weight});
  const auto batch = views.are_known() ? views.batch() : std::nullopt;
  return batch ? update_values(accumulator, *place, slot, *batch) : std::nullopt;
}

Outcome update_rows(MetricAccumulator& accumulator, py::handle state_tensor,
                    py::handle scratch_tensor, py::handle loss, py::handle correct, py::handle rank,
                    py::handle entropy, py::handle weight, py::handle mask) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  if (!place) return std::nullopt;
  const Views<kRowOperands> views(*place, {loss, correct, rank, entropy, weight, mask});
  const auto rows = views.are_known() ? views.batch() : std::nullopt;
  const bool says_anything =
      !loss.is_none() || !correct.is_none() || !rank.is_none() || !entropy.is_none();
  if (!rows || !says_anything || (!correct.is_none() && !rank.is_none())) return std::nullopt;
  const Batch batch = batch_of_rows(accumulator.options(), *rows);
  return update_elements(
      accumulator, *place, *rows,
      [&](int threads) { return accumulator.update_rows(batch, *rows, *place->state, threads); },
      [&](Scratch* scratch, int device, cuda::Stream stream) {
        return accumulator.launch_rows(batch, *rows, place->state, scratch, device, stream);
      });
}

Outcome update_regression(MetricAccumulator& accumulator, py::handle state_tensor,
                          py::handle scratch_tensor, py::handle prediction, py::handle target,
                          py::handle weight) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  if (!place || prediction.is_none() || target.is_none()) return std::nullopt;
  const Views<kRegressionOperands> views(*place, {prediction, target, weight});
  const auto batch = views.are_known() ? views.batch() : std::nullopt;
  if (!batch) return std::nullopt;
  return update_elements(
      accumulator, *place, *batch,
      [&](int threads) { return accumulator.update_regression(*batch, *place->state, threads); },
      [&](Scratch* scratch, int device, cuda::Stream stream) {
        return accumulator.launch_regression(*batch, place->state, scratch, device, stream);
      });
}

Outcome update_binary(MetricAccumulator& accumulator, py::handle state_tensor,
                      py::handle scratch_tensor, py::handle logits, py::handle target,
                      py::handle weight) {
  const auto place = place_of(accumulator, state_tensor, scratch_tensor);
  if (!place || logits.is_none() || target.is_none()) return std::nullopt;
  const Views<kBinaryOperands> views(*place, {logits, target, weight});
  const I64 labels = accumulator.options().binary.labels;
  const auto batch =
      views.are_known() ? views.batch(labels == 0 ? -1 : kLabelWeight) : std::nullopt;
  if (!batch || batch->operands[kScore].format > kBfloat16 ||
      (labels != 0 && views.last_size() != labels))
    return std::nullopt;
  return update_elements(
      accumulator, *place, *batch,
      [&](int threads) { return accumulator.update_binary(*batch, *place->state, threads); },
      [&](Scratch* scratch, int device, cuda::Stream stream) {
        return accumulator.launch_binary(*batch, place->state, scratch, device, stream);
      });
}

py::object bytes_of(const void* data, size_t size) {
  return py::bytes(static_cast<const char*>(data), size);
}

py::object read(MetricAccumulator& accumulator, py::handle state_tensor) {
  const auto state_view = view_of(state_tensor);
  State* state = state_view ? state_of(accumulator.options(), *state_view) : nullptr;
  if (state == nullptr) return py::none();
  const bool is_large = accumulator.options().confusion_is_large();
  if (!on_cpu(*state_view)) {
    std::vector<uint8_t> bytes(accumulator.options().snapshot_bytes());
    U64 lost = 0;
    if (!accumulator.copy_snapshot(bytes, lost)) return py::none();
    return py::make_tuple(bytes_of(bytes.data(), bytes.size()), lost, py::none());
  }
  std::vector<uint8_t> bytes(accumulator.options().reading_bytes());
  if (!is_large) {
    if (!accumulator.copy(*state, bytes, nullptr)) return py::none();
    return py::make_tuple(bytes_of(bytes.data(), bytes.size()), 0, py::none());
  }
  std::vector<double> sums;
  {
    const GilRelease released;
    if (!accumulator.copy(*state, bytes, &sums)) sums.clear();
  }
  if (sums.empty()) return py::none();
  return py::make_tuple(bytes_of(bytes.data(), bytes.size()), 0,
                        bytes_of(sums.data(), sums.size() * sizeof(double)));
}

/// Copies the whole state in host memory; false where that can't be done now.
bool copy(MetricAccumulator& accumulator, py::handle state_tensor, const py::buffer& into) {
  State* const state = host_state_of(accumulator, state_tensor);
  const py::buffer_info buffer = into.request(true);
  if (state == nullptr ||
      static_cast<U64>(buffer.size * buffer.itemsize) != accumulator.options().state_bytes())
    return false;
  const GilRelease released;
  return accumulator.copy(
      *state, {static_cast<uint8_t*>(buffer.ptr), accumulator.options().state_bytes()}, nullptr);
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
  return py::make_tuple(serial, Recorder::instance().steps().index_of(serial));
}

std::optional<MetricAccumulator::Counts> known_counts(
    const std::optional<std::vector<uint64_t>>& counts) {
  if (!counts) return std::nullopt;
  MetricAccumulator::Counts known;
  if (counts->size() != 1 + known.scalars.size())
    throw std::invalid_argument("counts must be of updates and of each running value");
  known.updates = counts->front();
  std::copy(counts->begin() + 1, counts->end(), known.scalars.begin());
  return known;
}

std::unique_ptr<MetricAccumulator> make(const std::string& task,
                                        const std::optional<std::vector<uint64_t>>& counts,
                                        std::optional<double> ema, const std::vector<I64>& topk,
                                        I64 num_classes, bool confusion, I64 ignore_index,
                                        int class_dim, bool cross_entropy, double label_smoothing,
                                        const std::vector<double>& class_weight,
                                        double class_weight_sum, int calibration_bins, I64 labels,
                                        int bins, bool from_logits, double threshold) {
  MetricOptions options;
  options.task = task == "regression" ? Task::kRegression
                 : task == "binary"   ? Task::kBinary
                                      : Task::kClassification;
  options.ema = ema.value_or(0);
  options.binary = {labels,           bins,
                    calibration_bins, from_logits ? 1 : 0,
                    threshold,        static_cast<double>(ignore_index)};
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
  if (options.task == Task::kClassification) options.calibration_bins = calibration_bins;
  return std::make_unique<MetricAccumulator>(options, known_counts(counts));
}

/// Writes a reading into the recording that is active, and shows it as NVTX marks. Values beyond
/// the bounds are counted, not written.
void append_reading(
    uint64_t update,
    const std::vector<std::tuple<std::string, double, std::optional<uint32_t>>>& values) {
  std::vector<Recorder::MetricValue> reading;
  for (const auto& [name, value, step] : values)
    reading.push_back({name, value, step.value_or(kNoStep)});
  Recorder::instance().append_reading(update, reading);
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
      .def(py::init(&make), py::kw_only(), py::arg("task"), py::arg("counts"),
           py::arg("ema") = py::none(), py::arg("topk") = std::vector<I64>(),
           py::arg("num_classes") = 0, py::arg("confusion") = false, py::arg("ignore_index") = 0,
           py::arg("class_dim") = 1, py::arg("cross_entropy") = false,
           py::arg("label_smoothing") = 0.0, py::arg("class_weight") = std::vector<double>(),
           py::arg("class_weight_sum") = 0.0, py::arg("calibration_bins") = 0,
           py::arg("labels") = 0, py::arg("bins") = 1, py::arg("from_logits") = true,
           py::arg("threshold") = 0.0)
      .def("update", &update, py::arg("state"), py::arg("scratch"), py::arg("logits"),
           py::arg("target"), py::arg("loss"), py::arg("weight"))
      .def("update_scalar", &update_scalar, py::arg("state"), py::arg("scratch"), py::arg("slot"),
           py::arg("value"))
      .def("update_weighted_scalar", &update_weighted_scalar, py::arg("state"), py::arg("scratch"),
           py::arg("slot"), py::arg("value"), py::arg("weight"))
      .def("update_rows", &update_rows, py::arg("state"), py::arg("scratch"), py::arg("loss"),
           py::arg("correct"), py::arg("rank"), py::arg("entropy"), py::arg("weight"),
           py::arg("mask"))
      .def("update_regression", &update_regression, py::arg("state"), py::arg("scratch"),
           py::arg("prediction"), py::arg("target"), py::arg("weight"))
      .def("update_binary", &update_binary, py::arg("state"), py::arg("scratch"), py::arg("logits"),
           py::arg("target"), py::arg("weight"))
      .def("read", &read, py::arg("state"))
      .def("copy", &copy, py::arg("state"), py::arg("into"))
      .def("reset", &reset, py::arg("state"))
      .def("launch_error", &MetricAccumulator::launch_error)
      .def("was_captured", &MetricAccumulator::was_captured)
      .def("begin_other", &MetricAccumulator::begin_other, py::call_guard<GilRelease>())
      .def("end_other", &end_other, py::arg("state"), py::arg("added"), py::arg("slot"),
           py::arg("is_counted"))
      .def(
          "replace_counts",
          [](MetricAccumulator& accumulator, const std::optional<std::vector<uint64_t>>& counts) {
            const auto known = known_counts(counts);
            const GilRelease released;
            accumulator.replace_counts(known);
          },
          py::arg("counts"))
      .def("reset_scalars", &MetricAccumulator::reset_scalars)
      .def("counts",
           [](const MetricAccumulator& accumulator) -> std::optional<std::vector<uint64_t>> {
             const auto known = accumulator.counts();
             if (!known) return std::nullopt;
             std::vector<uint64_t> counts{known->updates};
             counts.insert(counts.end(), known->scalars.begin(), known->scalars.end());
             return counts;
           })
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
  module.def("metric_kernel_texts", [] {
    return std::vector<std::pair<const char*, const char*>>{
        {"metric_kernel.cu", pig_metric_kernel_cu},
        {"metrics/kernel_elements.cuh", pig_kernel_elements_cuh},
        {"metrics/kernel_row.cuh", pig_kernel_row_cuh},
        {"metrics/kernel_finish.cuh", pig_kernel_finish_cuh},
        {"metrics/metric_kernel.h", pig_metric_kernel_h},
        {"metrics/binary_totals.h", pig_binary_totals_h},
        {"metrics/element_batch.h", pig_element_batch_h},
        {"metrics/metric_state.h", pig_metric_state_h},
        {"metrics/regression_totals.h", pig_regression_totals_h},
        {"metrics/row_values.h", pig_row_values_h},
        {"metrics/state_fields.h", pig_state_fields_h},
        {"metrics/value_totals.h", pig_value_totals_h}};
  });
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
