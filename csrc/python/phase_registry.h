// SPDX-License-Identifier: Apache-2.0
//
// The names' handles. `gpu_phase` finds one through a small cache keyed by the address of the name
// object (a literal in user code is always the same object), and through a dict behind it. The
// cache holds references, so an address in it can't come to mean another string.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/ticks.h"
#include "python/phase_type.h"

namespace pig {

/// Makes the registry. Returns false with a Python error set.
bool ready_phase_registry();

/// The handle of a name, borrowed: handles live forever. Makes it when it is new; one that names
/// share where there is no memory for that; nullptr with a Python error set when the name can't be
/// one. Of a long name the first 256 characters count.
Phase* find_phase(PyObject* name);
Phase* find_phase(const char* name);

/// UTF-8 as run files have it: lone surrogates are encoded like other characters. False with a
/// Python error set. Throws std::bad_alloc.
bool encode_name(PyObject* name, std::string& utf8);

/// How many handles were made for names that had to be cut.
uint64_t cut_name_count();

/// From now on names that find no room share a handle instead of raising.
void tolerate_too_many_names();

#ifdef Py_GIL_DISABLED

/// Without a GIL the cache would need a lock; the dict has its own. Two threads that meet a new
/// name at the same moment may make two handles of it: both work, both names are in the run.
inline Phase* phase_of(PyObject* name) { return find_phase(name); }

#else

struct PhaseCacheEntry {
  PyObject* name;
  Phase* phase;
};
constexpr size_t kPhaseCacheEntries = 1024;
PIG_HOT extern PhaseCacheEntry phase_cache[kPhaseCacheEntries];

/// `find_phase` behind the cache, whose `entry` is that of the name's address.
Phase* find_phase_for(PyObject* name, PhaseCacheEntry& entry);

inline Phase* phase_of(PyObject* name) {
  const auto address = reinterpret_cast<uintptr_t>(name);
  PhaseCacheEntry& entry = phase_cache[(address >> 4 ^ address >> 14) % kPhaseCacheEntries];
  if (PIG_LIKELY(entry.name == name)) return entry.phase;
  return find_phase_for(name, entry);
}

#endif

}  // namespace pig
