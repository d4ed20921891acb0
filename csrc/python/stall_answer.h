// SPDX-License-Identifier: Apache-2.0
//
// What is found out about a stall, and told. Two threads, which live only for that: one waits for
// the GIL and then has Python answer. Where it has not got it after five seconds, the thread that
// has it hangs in C: anything that ran Python code would have given it away by then, as it does
// every few milliseconds when another thread waits. Then, and only then, the other thread reads the
// stacks without it, as faulthandler does.
#pragma once

#include <chrono>

namespace pig {

/// On the recorder's thread: a stall was noticed. Waits for nothing.
void answer_stall() noexcept;

/// Before the interpreter may end, without the GIL: waits for a thread that is about to take it.
void wait_for_stall_answers(std::chrono::milliseconds patience);

/// A forked child has none of these threads.
void forget_stall_answers_in_child();

}  // namespace pig
