// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace pig {

/// Sees to it that a vector can grow to so many elements without a throw. Throws std::bad_alloc.
template <typename Element>
void make_room(std::vector<Element>& vector, size_t elements) {
  if (vector.capacity() < elements) vector.reserve(2 * elements);
}

}  // namespace pig
