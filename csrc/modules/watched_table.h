// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hot/module_stack.h"
#include "hot/nvtx_range.h"

namespace pig {

/// A watched module, and its marks.
struct Watched {
  WatchedModule module;
  NvtxName nvtx;
  const PyObject* object = nullptr;  ///< a name for it, not to be looked into
  PyObject* reference = nullptr;     ///< a weak one, whose callback says that it has gone
  PyObject* enter = nullptr;
  PyObject* leave = nullptr;
  bool is_active = true;
  bool was_called = false;
};

/// Watched modules by their objects. Each call of any module looks here, so it is one glance: a
/// module that goes says so itself, by the callback of a weak reference.
class WatchedTable {
 public:
  Watched* find(const PyObject* module) const {
    for (size_t i = slot_of(module);; ++i) {
      const Slot& slot = slots_[i & mask_];
      if (slot.module == module) return slot.watched;
      if (slot.module == nullptr) return nullptr;
    }
  }

  /// In place of one of the same object. Throws std::bad_alloc.
  void add(const PyObject* module, Watched* watched) {
    if (2 * (used_ + 1) > slots_.size()) make_room();
    put(module, watched);
  }

  /// Another object may come to have its address. The slot stays used until `make_room`.
  void remove(const PyObject* module, const Watched* watched) {
    for (size_t i = slot_of(module); slots_[i & mask_].module != nullptr; ++i) {
      Slot& slot = slots_[i & mask_];
      if (slot.module == module && slot.watched == watched) slot.watched = nullptr;
    }
  }

 private:
  struct Slot {
    const PyObject* module = nullptr;
    Watched* watched = nullptr;
  };

  size_t slot_of(const PyObject* module) const {
    return (reinterpret_cast<uintptr_t>(module) * 0x9E3779B97F4A7C15u) >> 40;
  }

  void put(const PyObject* module, Watched* watched) {
    size_t i = slot_of(module) & mask_;
    while (slots_[i].module != nullptr && slots_[i].module != module) i = (i + 1) & mask_;
    if (slots_[i].module == nullptr) ++used_;
    slots_[i] = {module, watched};
  }

  /// Leaves out what was removed, so that the size follows what there is, not what there was.
  void make_room() {
    size_t needed = 1;
    for (const Slot& slot : slots_) needed += slot.watched != nullptr ? 1 : 0;
    size_t size = kSmallest;
    while (size < 4 * needed) size *= 2;
    std::vector<Slot> before(size);
    before.swap(slots_);
    mask_ = slots_.size() - 1;
    used_ = 0;
    for (const Slot& slot : before)
      if (slot.watched != nullptr) put(slot.module, slot.watched);
  }

  static constexpr size_t kSmallest = 64;
  std::vector<Slot> slots_ = std::vector<Slot>(kSmallest);
  size_t mask_ = kSmallest - 1;
  size_t used_ = 0;
};

}  // namespace pig
