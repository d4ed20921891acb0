// SPDX-License-Identifier: Apache-2.0
//
// Automatic phases, as Python sees them.
#include <pybind11/stl.h>

#include <optional>
#include <string_view>

#include "auto/activities.h"
#include "auto/loop_session.h"
#include "hooks/call_hook.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

bool observe_calls(py::handle function, std::string_view kind) {
  const std::optional<bool> is_hooked = observe_activity(function.ptr(), kind);
  if (!is_hooked) throw py::value_error("no such kind of call");
  return *is_hooked;
}

void begin_loop(const py::type& loss_type, py::handle is_grad_enabled, py::handle has_parameters,
                py::handle samples_of, py::handle loader_options, py::handle times_written,
                py::handle is_trained_in_eval_mode, py::handle are_of_one_iteration,
                py::handle note_line, uint64_t main_thread, py::handle on_step_end) {
  LoopSession::instance().begin({loss_type.ptr(), is_grad_enabled.ptr(), has_parameters.ptr(),
                                 samples_of.ptr(), loader_options.ptr(), times_written.ptr(),
                                 is_trained_in_eval_mode.ptr(), are_of_one_iteration.ptr()},
                                main_thread, on_step_end.ptr(), note_line.ptr());
}

void note_metric_type(const py::type& type) {
  LoopSession::instance().note_metric_type(type.ptr());
}

void end_loop() {
  unobserve_calls(ObserverOf::loop);
  LoopSession& session = LoopSession::instance();
  session.end();
  if (session.raise_kept_error()) throw py::error_already_set();
}

uint64_t begin_copy(py::handle phase) {
  const Phase* of = phase_argument(phase.ptr());
  if (of == nullptr) throw py::error_already_set();
  LoopSession& session = LoopSession::instance();
  if (!session.is_updating()) session.detector().copies_to_device();
  session.note_line(*of);
  if (session.raise_kept_error()) throw py::error_already_set();
  return begin_activity(*of);
}

void end_copy(py::handle phase, uint64_t token) {
  const Phase* of = phase_argument(phase.ptr());
  if (of == nullptr) throw py::error_already_set();
  end_activity(*of, token);
}

}  // namespace

void add_auto_functions(py::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), optimizer_functions) != 0) throw py::error_already_set();
  module.def("observe_calls", &observe_calls, "function"_a, "kind"_a);
  module.def("begin_loop", &begin_loop, py::kw_only(), "loss_type"_a, "is_grad_enabled"_a,
             "has_parameters"_a, "samples_of"_a, "loader_options"_a, "times_written"_a,
             "is_trained_in_eval_mode"_a, "are_of_one_iteration"_a, "note_line"_a, "main_thread"_a,
             "on_step_end"_a);
  module.def("note_metric_type", &note_metric_type, "type"_a, py::pos_only());
  module.def("end_loop", &end_loop);
  module.def("end_open_step", [] {
    LoopSession& session = LoopSession::instance();
    if (session.is_active() && session.detector().counts_here()) session.detector().finish();
    if (session.raise_kept_error()) throw py::error_already_set();
  });
  module.def("leave_steps_alone", [] {
    LoopSession& session = LoopSession::instance();
    session.detector().leave_alone();
    if (session.raise_kept_error()) throw py::error_already_set();
  });
  module.def("loader_uses", [] {
    py::list uses;
    // By number: making objects may run Python code, which may use a loader for the first time.
    const auto& known = LoopSession::instance().loader_uses();
    for (size_t i = 0; i < known.size(); ++i) {
      const LoopSession::LoaderUse use = known[i];
      uses.append(py::make_tuple(py::handle(use.options), use.steps, use.draws));
    }
    return uses;
  });
  module.def("forget_loader_uses", [] { LoopSession::instance().forget_loader_uses(); });
  module.def("loop_passes_by", [] { return LoopSession::instance().passes_by(); });
  module.def("begin_copy", &begin_copy, "phase"_a);
  module.def("end_copy", &end_copy, "phase"_a, "token"_a);
  module.def("optimizer_seen", [] { return LoopSession::instance().optimizer_seen(); });
  module.def("loop_has_failed", [] { return LoopSession::instance().has_failed(); });
}

}  // namespace pig
