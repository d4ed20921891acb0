// SPDX-License-Identifier: Apache-2.0
#include "metrics/element_tensors.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "metrics/metric_batch.h"

namespace pig::metrics {
namespace {

/// One dimension, with its stride in each operand.
struct Dimension {
  I64 size = 1;
  std::array<I64, kMaxOperands> strides{};

  bool holds(const Dimension& inner) const {
    for (size_t i = 0; i < strides.size(); ++i)
      if (strides[i] != inner.strides[i] * inner.size) return false;
    return true;
  }
};

}  // namespace

std::optional<ElementBatch> make_element_batch(std::span<const dlpack::Tensor* const> tensors,
                                               int of_rows, I64 row_size) {
  ElementBatch batch{};
  batch.operand_count = static_cast<int>(tensors.size());
  const dlpack::Tensor* shape = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (shape == nullptr && static_cast<int>(i) != of_rows) shape = tensors[i];
  if (shape == nullptr) return std::nullopt;
  if (row_size != 0 && (shape->ndim == 0 || shape->shape[shape->ndim - 1] != row_size))
    return std::nullopt;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const dlpack::Tensor* const tensor = tensors[i];
    if (tensor == nullptr) continue;
    const int ndim = shape->ndim - (static_cast<int>(i) == of_rows ? 1 : 0);
    const Format format = format_of(tensor->dtype);
    if (format == kNone || tensor->ndim != ndim || !same_device(*tensor, *shape) ||
        !std::equal(shape->shape, shape->shape + ndim, tensor->shape))
      return std::nullopt;
    batch.operands[i].data = data_of(*tensor);
    batch.operands[i].format = format;
  }

  batch.elements = 1;
  for (int dim = 0; dim < shape->ndim; ++dim) batch.elements *= shape->shape[dim];
  std::array<Dimension, kMaxDims> dimensions;
  for (int dim = 0; dim < shape->ndim; ++dim) {
    Dimension next{shape->shape[dim], {}};
    if (next.size == 1 || batch.elements == 0) continue;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i] != nullptr && dim < tensors[i]->ndim)
        next.strides[i] = tensors[i]->strides[dim];
    Dimension* const last = &dimensions[static_cast<size_t>(std::max(batch.dims - 1, 0))];
    if (batch.dims > 0 && last->holds(next)) {
      next.size *= last->size;
      *last = next;
    } else if (batch.dims < kMaxDims) {
      dimensions[static_cast<size_t>(batch.dims++)] = next;
    } else {
      return std::nullopt;
    }
  }
  if (batch.dims == 0) batch.dims = 1;  // there is one at least
  for (int dim = 0; dim < batch.dims; ++dim) {
    const Dimension& from = dimensions[static_cast<size_t>(dim)];
    batch.sizes[dim] = from.size;
    for (size_t i = 0; i < from.strides.size(); ++i)
      batch.operands[i].strides[dim] = from.strides[i];
  }
  return batch;
}

}  // namespace pig::metrics
