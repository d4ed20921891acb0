// SPDX-License-Identifier: Apache-2.0
#include "auto/activity.h"

#include "base/throwing.h"
#include "hooks/torch_state.h"

namespace pig {

Observing Activity::begins(ObservedCall& call) {
  if (PIG_LIKELY(activity_session == session_number)) return Observing::ignored;
  LoopSession& session = LoopSession::instance();
  if (!session.is_active() || is_compiling()) return Observing::ignored;
  const bool has_memory = try_allocating([&] {
    call.subject = phase_of(session, call);
    call.session = session_number;
    if (call.subject == nullptr) return;
    if (!session.is_updating()) announce(session, call);
    session.note_line(*static_cast<const Phase*>(call.subject));
  });
  if (!has_memory) session.fail();
  if (!has_memory || call.subject == nullptr) return Observing::ignored;
  if (session.raise_kept_error()) return Observing::failed;
  call.token = begin_activity(*static_cast<const Phase*>(call.subject));
  return Observing::begun;
}

bool Activity::ends(ObservedCall& call, PyObject* result) {
  LoopSession& session = LoopSession::instance();
  const bool is_of_session = session.is_active() && call.session == session_number;
  if (is_of_session && !try_allocating([&] { ending(session, call, result); })) session.fail();
  end_activity(*static_cast<const Phase*>(call.subject), call.token);
  if (is_of_session && !try_allocating([&] { ended(session, call, result); })) session.fail();
  return !session.raise_kept_error();
}

}  // namespace pig
