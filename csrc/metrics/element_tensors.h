// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "base/dlpack.h"
#include "metrics/element_batch.h"

namespace pig::metrics {

/// Tensors of one shape and on one device as the scan and the kernels take them; null where one was
/// not given. `of_rows` is the place of one that lacks the last dimension and has the same number
/// for all elements along it; -1: there is none. `row_size` is what the last dimension has to be;
/// 0: anything. Nothing where they do not fit each other, and where more than kMaxDims dimensions
/// cannot be merged: then Python says what is wrong, or does the update itself.
std::optional<ElementBatch> make_element_batch(std::span<const dlpack::Tensor* const> tensors,
                                               int of_rows = -1, I64 row_size = 0);

}  // namespace pig::metrics
