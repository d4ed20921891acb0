// SPDX-License-Identifier: Apache-2.0
//
// Times of modules, as spans of their own kind.
//
// A call of a module is timed as it is: forward, or, in a backward pass, the recomputation of an
// activation checkpoint.
//
// A backward pass has no calls of modules. What there is are marks on autograd's nodes: one where
// the node of a module's output begins, which is where the pass enters the module, and one where
// the node of its input begins, which is where it leaves it. Between two marks the pass is in one
// place of the tree of modules, so that the marks divide it, and nothing has to be paired. The pass
// may run on other threads than the one that has called it, which is where it hangs; each has a
// position of its own.
#pragma once

#include <cstdint>

#include "hot/module_stack.h"

namespace pig {

/// A call begins. Returns a token for its end, 0 for none.
uint64_t begin_module(const WatchedModule& module, bool recomputes) noexcept;
void end_module(uint64_t token) noexcept;

/// The calling thread runs a backward pass. Returns its number, 0 for none.
uint64_t begin_backward_pass() noexcept;
void end_backward_pass(uint64_t pass) noexcept;
/// Whether the calling thread has called a backward pass that goes on.
bool is_in_backward_pass() noexcept;
/// Whether any thread has.
bool is_any_backward_pass() noexcept;

/// The pass reaches the node of a module's output, or of its input.
void enter_in_backward(const WatchedModule& module) noexcept;
void leave_in_backward(const WatchedModule& module) noexcept;

/// In a forked child: the passes of the parent's threads go on there.
void forget_backward_passes_in_child() noexcept;

}  // namespace pig
