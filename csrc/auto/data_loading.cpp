// SPDX-License-Identifier: Apache-2.0
//
// Phases "data", waiting for the next item of a DataLoader, "data start", the start of a loop over
// it and of its workers, and "data end", finding that it has no further item.
#include "auto/activities.h"
#include "python/phase_use.h"
#include "python/step_iterator.h"

namespace pig {
namespace {

class LoaderStart final : public Activity {
  const Phase* phase_of(LoopSession&, const ObservedCall& call) override {
    return is_timing_data || call.self == nullptr ? nullptr : start_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    session.detector().starts_loader(session.number_of_loader(call.self));
  }

  void ended(LoopSession& session, const ObservedCall& call, PyObject* iterator) override {
    if (iterator == nullptr) return;
    PyObject* sampler = PyObject_GetAttrString(call.self, "batch_sampler");
    if (sampler == nullptr) session.take_error();
    Py_XDECREF(sampler);
    session.note_iterator(
        iterator, {session.number_of_loader(call.self), sampler != nullptr && sampler != Py_None});
  }

  const Phase* const start_ = phase_named("data start");
};

class NextItem final : public Activity {
  const Phase* phase_of(LoopSession&, const ObservedCall& call) override {
    return is_timing_data || call.self == nullptr ? nullptr : data_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    const uint64_t loader = session.iterator(call.self).loader;
    const bool is_grad_enabled = session.is_grad_enabled();
    session.detector().asks_for_item(loader, is_grad_enabled);
    if (is_grad_enabled && session.detector().is_left_alone()) session.draws_from(loader);
  }

  void ending(LoopSession& session, const ObservedCall& call, PyObject* item) override {
    if (item != nullptr || PyErr_ExceptionMatches(PyExc_StopIteration) == 0) return;
    if (none_ != nullptr) rename_token(call.token, *none_);
    session.detector().got_none(session.iterator(call.self).loader);
  }

  void ended(LoopSession& session, const ObservedCall& call, PyObject* item) override {
    if (item == nullptr) return;
    // What the loader did not batch has no number of samples.
    const bool is_batched = session.iterator(call.self).is_batched;
    session.detector().got_item(is_batched ? session.samples_of(item) : NAN);
  }

  const Phase* const data_ = phase_named("data");
  const Phase* const none_ = phase_named("data end");
};

}  // namespace

CallObserver& loader_start() { return the<LoaderStart>(); }
CallObserver& next_item() { return the<NextItem>(); }

}  // namespace pig
