// SPDX-License-Identifier: Apache-2.0
//
// No memory. C++'s `new` fails when a test says so, if this is loaded by LD_PRELOAD, before the
// module that calls it: only the thread that has asked for failures gets them. And all memory that
// there is can be kept.
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local long first = 0;  ///< the number of the first allocation that fails; 0: none does
thread_local long last = 0;   ///< and of the last one
thread_local long made = 0;
thread_local long failed = 0;

void* allocate(std::size_t size) noexcept {
  if (first == 0) return std::malloc(size);
  ++made;
  if (made < first || made > last) return std::malloc(size);
  ++failed;
  return nullptr;
}

struct Kept {
  Kept* before;
};
Kept* kept = nullptr;

}  // namespace

extern "C" {

/// Keeps all memory that there is, to the last sixteen bytes.
[[gnu::visibility("default")]] void keep_all() {
  for (std::size_t bytes = std::size_t{64} << 20; bytes >= sizeof(Kept) * 2; bytes /= 2)
    while (auto* const block = static_cast<Kept*>(std::malloc(bytes))) {
      block->before = kept;
      kept = block;
    }
}

[[gnu::visibility("default")]] void give_back() {
  while (kept != nullptr) {
    Kept* const block = kept;
    kept = block->before;
    std::free(block);
  }
}

/// Of the calling thread's allocations from now on, those from `from` to `to` fail, counted from 1.
[[gnu::visibility("default")]] void fail_allocations(long from, long to) {
  first = from;
  last = to;
  made = failed = 0;
}

/// Ends it. Returns how many have failed.
[[gnu::visibility("default")]] long allocations_failed() {
  first = 0;
  return failed;
}
}

[[gnu::visibility("default")]] void* operator new(std::size_t size) {
  void* const memory = allocate(size != 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::visibility("default")]] void* operator new(std::size_t size,
                                                  const std::nothrow_t&) noexcept {
  return allocate(size != 0 ? size : 1);
}
[[gnu::visibility("default")]] void* operator new[](std::size_t size) { return operator new(size); }
[[gnu::visibility("default")]] void* operator new[](std::size_t size,
                                                    const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
[[gnu::visibility("default")]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::visibility("default")]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::visibility("default")]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::visibility("default")]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
