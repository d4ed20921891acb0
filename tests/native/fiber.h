// SPDX-License-Identifier: Apache-2.0
//
// A function on a stack of its own, which can be left in the middle and gone on with later. The
// sanitizers are informed of each change of stacks.
#pragma once

#undef _FORTIFY_SOURCE  // it takes a jump to another stack for a mistake
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

class Fiber {
 public:
  static constexpr size_t kStackBytes = 64 << 10;

  Fiber() : stack_(new char[kStackBytes]) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Fiber::enter, 0);
#if defined(__SANITIZE_THREAD__)
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_fiber_);
#endif
  }

  /// Has `function` begin at the next `resume`. One that has begun must be gone on with to its end.
  void start(void (*function)()) {
    function_ = function;
    is_done_ = false;
  }

  /// Goes on with the function until it calls `leave` or ends.
  void resume() {
    current_ = this;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_of_caller_, stack_.get(), kStackBytes);
    swapcontext(&caller_, &own_);
    __sanitizer_finish_switch_fiber(fake_stack_of_caller_, nullptr, nullptr);
#elif defined(__SANITIZE_THREAD__)
    tsan_caller_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, 0);
    swapcontext(&caller_, &own_);
#else
    if (_setjmp(jump_to_caller_) == 0) {
      if (!is_new_) _longjmp(jump_to_own_, 1);
      is_new_ = false;
      setcontext(&own_);
    }
#endif
  }

  /// To be called by the function: `resume` returns.
  static void leave() { current_->switch_to_caller(); }

  bool is_done() const { return is_done_; }

 private:
  static void enter() {
    Fiber& self = *current_;
    self.arrived();
    for (;;) {  // one function after the other: making a context takes system calls
      self.function_();
      self.is_done_ = true;
      self.switch_to_caller();
    }
  }

  void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, &stack_of_caller_, &stack_bytes_of_caller_);
#endif
  }

  void switch_to_caller() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, stack_of_caller_, stack_bytes_of_caller_);
    swapcontext(&own_, &caller_);
    arrived();
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan_caller_, 0);
    swapcontext(&own_, &caller_);
#else
    if (_setjmp(jump_to_own_) == 0) _longjmp(jump_to_caller_, 1);
#endif
  }

  static inline Fiber* current_ = nullptr;

  std::unique_ptr<char[]> stack_;
  void (*function_)() = nullptr;
  ucontext_t own_;
  bool is_new_ = true;
  bool is_done_ = true;
#if defined(__SANITIZE_ADDRESS__)
  ucontext_t caller_;
  void* fake_stack_ = nullptr;
  void* fake_stack_of_caller_ = nullptr;
  const void* stack_of_caller_ = nullptr;
  size_t stack_bytes_of_caller_ = 0;
#elif defined(__SANITIZE_THREAD__)
  ucontext_t caller_;
  void* tsan_fiber_ = nullptr;
  void* tsan_caller_ = nullptr;
#else
  jmp_buf jump_to_caller_;
  jmp_buf jump_to_own_;
#endif
};
