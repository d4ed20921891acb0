// SPDX-License-Identifier: Apache-2.0
//
// The step detector with a Python object as the port that opens and closes steps.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "record/step_detector.h"

namespace py = pybind11;

namespace {

class PythonPort : public pig::StepPort {
 public:
  explicit PythonPort(py::object port) : port_(std::move(port)) {}

  int64_t step_begin() override { return port_.attr("step_begin")().cast<int64_t>(); }
  void step_item(int64_t token, double samples) override {
    port_.attr("step_item")(token, samples);
  }
  void step_note_update(int64_t token) override { port_.attr("step_note_update")(token); }
  void step_end(int64_t token, bool complete, pig::StepEnd when) override {
    port_.attr("step_end")(token, complete, when == pig::StepEnd::kAtUpdate);
  }
  void no_step_follows() override {}
  void step_drop(int64_t token) override { port_.attr("step_drop")(token); }
  size_t optimizer_count() override { return port_.attr("optimizer_count")().cast<size_t>(); }
  void step_has_ended() override { port_.attr("step_has_ended")(); }
  std::optional<bool> goes_on_after_update() override {
    return port_.attr("goes_on_after_update")().cast<std::optional<bool>>();
  }

 private:
  py::object port_;
};

struct PortHolder {
  PythonPort port;
};

/// A detector that keeps its port. It derives from nothing virtual: with that GCC's sanitizer takes
/// calls of its methods through pointers to members for calls of another object.
class Detector : PortHolder, public pig::StepDetector {
 public:
  Detector(py::object object, uint64_t thread)
      : PortHolder{PythonPort(std::move(object))}, StepDetector(port, thread) {}
};

}  // namespace

PYBIND11_MODULE(_step_detector, module, pybind11::mod_gil_not_used()) {
  py::class_<Detector>(module, "StepDetector")
      .def(py::init<py::object, uint64_t>(), py::arg("port"), py::arg("thread"))
      .def("starts_loader", &Detector::starts_loader)
      .def("asks_for_item", &Detector::asks_for_item)
      .def("got_item", &Detector::got_item)
      .def("got_none", &Detector::got_none)
      .def("clears_gradients", &Detector::clears_gradients)
      .def("follows_update", &Detector::follows_update)
      .def("copies_to_device", &Detector::copies_to_device)
      .def("runs_forward", &Detector::runs_forward)
      .def("evaluates", &Detector::evaluates, py::arg("in_eval_mode") = true)
      .def("runs_backward", &Detector::runs_backward)
      .def("differentiates", &Detector::differentiates)
      .def("ends_backward", &Detector::ends_backward, py::arg("has_updated"))
      .def("begins_update", &Detector::begins_update)
      .def("ends_update", &Detector::ends_update)
      .def("has_stepped", &Detector::has_stepped)
      .def("finish", &Detector::finish)
      .def("leave_alone", &Detector::leave_alone)
      .def_property_readonly("optimizer_seen", &Detector::optimizer_seen);
  module.attr("MOST_LOADERS") = pig::StepDetector::kMostLoaders;
  module.attr("MOST_KINDS_OF_ITEMS") = pig::StepDetector::kMostKindsOfItems;
}
