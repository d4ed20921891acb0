// SPDX-License-Identifier: Apache-2.0
//
// Phases "compiled NAME": calls of functions that torch.compile has made.
//
// What is called inside is part of such a call, whether it was compiled or a graph breaks there: a
// module, a backward pass, the step of an optimizer. A compiled update calls
// nothing that could be observed. But it writes to the parameters of its optimizer, and that shows.
//
// Each call of a compiled function switches Dynamo on, and off at its end, by one function of
// torch's. That is what is observed here. The function that does both is a wrapper of Dynamo's,
// one for each compiled function.
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "auto/activities.h"
#include "auto/loop_session.h"
#include "hooks/tensor_inspector.h"
#include "python/opener.h"

namespace pig {
namespace {

/// The outermost compiled call of a thread.
struct OpenCall {
  PyFrameObject* wrapper;  ///< owned
  const Phase* phase;
  uint64_t session;
  uint64_t token;
  std::vector<LoopSession::Written> before;
};

/// A pointer, so that nothing is done where a thread is ended in the middle of a call.
thread_local OpenCall* open_call = nullptr;

bool has_returned(PyFrameObject* frame) {
  PyFrameObject* found = frame_on_stack(frame);
  Py_XDECREF(found);
  return found == nullptr;
}

class CompiledCall final : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override {
    const bool switches_off = call.self == Py_None;
    if (open_call == nullptr && switches_off) return Observing::ignored;
    LoopSession& session = LoopSession::instance();
    PyFrameObject* const wrapper = PyEval_GetFrame();
    if (open_call != nullptr) {
      // Compiled calls inside this one switch as well.
      if (wrapper != open_call->wrapper && !has_returned(open_call->wrapper))
        return Observing::ignored;
      if (switches_off) return Observing::begun;
      end(session);  // the program was interrupted before it could
    }
    if (wrapper == nullptr || session.passes_by() || is_compiling()) return Observing::ignored;
    try {
      begin(session, wrapper);
    } catch (const std::bad_alloc&) {
      session.fail();
    }
    return session.raise_kept_error() ? Observing::failed : Observing::ignored;
  }

  /// Once Dynamo is off: it would compile what is called here.
  bool ends(ObservedCall&, PyObject*) override {
    LoopSession& session = LoopSession::instance();
    end(session);
    return !session.raise_kept_error();
  }

 private:
  static void begin(LoopSession& session, PyFrameObject* wrapper) {
    const Phase* const phase = phase_of(session, wrapper);
    if (phase == nullptr) return;
    auto made = std::make_unique<OpenCall>();
    if (!session.is_updating()) {
      // It may compute anything. With gradients, that is most often what is trained.
      if (session.is_grad_enabled()) session.detector().runs_forward();
      made->before = session.written_to();
    }
    made->wrapper = reinterpret_cast<PyFrameObject*>(Py_NewRef(wrapper));
    made->phase = phase;
    made->session = session_number;
    session.note_line(*phase);
    made->token = begin_activity(*phase);
    open_call = made.release();
  }

  static void end(LoopSession& session) {
    const std::unique_ptr<OpenCall> ended(std::exchange(open_call, nullptr));
    end_activity(*ended->phase, ended->token);
    try {
      if (session.is_active() && ended->session == session_number)
        session.note_updates_since(ended->before);
    } catch (const std::bad_alloc&) {
      session.fail();
    }
    Py_DECREF(ended->wrapper);  // last: its locals may go with it
  }

  /// By the name of the function that was compiled.
  static const Phase* phase_of(LoopSession& session, PyFrameObject* wrapper) {
    std::string name = "compiled";
    const auto frame = reinterpret_cast<PyObject*>(wrapper);
    const auto locals = session.answer(PyObject_GetAttrString(frame, "f_locals"));
    const auto function =
        locals ? session.answer(PyMapping_GetItemString(locals.ptr(), "fn")) : locals;
    const auto named =
        function ? session.answer(PyObject_GetAttrString(function.ptr(), "__name__")) : function;
    const char* text = named ? PyUnicode_AsUTF8(named.ptr()) : nullptr;
    session.take_error();
    if (text != nullptr && std::string_view(text).find('/') == std::string_view::npos)
      name.append(" ").append(text);
    return phase_named(name.c_str());
  }
};

}  // namespace

CallObserver& compiled_call() { return the<CompiledCall>(); }

}  // namespace pig
