// SPDX-License-Identifier: Apache-2.0
#include "metrics/metric_batch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pig::metrics {
namespace {

constexpr int kMostDimsOfTorch = 64;

bool is_real(Format format) { return format >= kFloat64 && format <= kBfloat16; }

bool is_index(Format format) { return format >= kInt64 && format <= kUint8; }

bool same_shape(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

I64 size_of(const dlpack::Tensor& tensor) {
  I64 size = 1;
  for (int dim = 0; dim < tensor.ndim; ++dim) size *= tensor.shape[dim];
  return size;
}

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

Format format_of(const dlpack::DataType& type) {
  if (type.lanes != 1) return kNone;
  switch (type.code) {
    case dlpack::kFloat:
      return type.bits == 64   ? kFloat64
             : type.bits == 32 ? kFloat32
             : type.bits == 16 ? kFloat16
                               : kNone;
    case dlpack::kBfloat:
      return type.bits == 16 ? kBfloat16 : kNone;
    case dlpack::kInt:
      return type.bits == 64 ? kInt64 : type.bits == 32 ? kInt32 : kNone;
    case dlpack::kUint:
    case dlpack::kBool:
      return type.bits == 8 ? kUint8 : kNone;
    default:
      return kNone;
  }
}

const void* data_of(const dlpack::Tensor& tensor) {
  return static_cast<const char*>(tensor.data) + tensor.byte_offset;
}

bool same_device(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  return a.device.type == b.device.type && a.device.id == b.device.id;
}

std::optional<ElementBatch> make_element_batch(std::span<const dlpack::Tensor* const> tensors) {
  ElementBatch batch{};
  const dlpack::Tensor* shape = nullptr;
  for (const dlpack::Tensor* const tensor : tensors)
    if (shape == nullptr) shape = tensor;
  if (shape == nullptr) return std::nullopt;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const dlpack::Tensor* const tensor = tensors[i];
    if (tensor == nullptr) continue;
    const Format format = format_of(tensor->dtype);
    if (format == kNone || !same_device(*tensor, *shape) || !same_shape(*tensor, *shape))
      return std::nullopt;
    batch.operands[i].data = data_of(*tensor);
    batch.operands[i].format = format;
  }

  batch.elements = size_of(*shape);
  std::array<Dimension, kMaxDims> dimensions;
  for (int dim = 0; dim < shape->ndim; ++dim) {
    Dimension next{shape->shape[dim], {}};
    if (next.size == 1 || batch.elements == 0) continue;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i] != nullptr) next.strides[i] = tensors[i]->strides[dim];
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
    batch.reciprocals[dim] = reciprocal_of(from.size, batch.elements);
    for (size_t i = 0; i < from.strides.size(); ++i)
      batch.operands[i].strides[dim] = from.strides[i];
  }
  return batch;
}

std::optional<Batch> make_batch(const MetricOptions& options, const dlpack::Tensor& logits,
                                const dlpack::Tensor& target, const dlpack::Tensor* loss,
                                const dlpack::Tensor* weight) {
  Batch batch{};
  batch.logits_format = format_of(logits.dtype);
  batch.target_format = format_of(target.dtype);
  if (!is_real(batch.logits_format) || !is_index(batch.target_format) ||
      target.dtype.code == dlpack::kBool)
    return std::nullopt;
  if (logits.ndim < 2 || logits.ndim > kMostDimsOfTorch) return std::nullopt;
  const int class_dim = options.class_dim < 0 ? logits.ndim - 1 : 1;
  batch.classes = logits.shape[class_dim];
  batch.class_stride = logits.strides[class_dim];
  if (options.classes != 0 && batch.classes != options.classes) return std::nullopt;
  if (batch.classes >= I64{1} << 31)
    return std::nullopt;  // kernels count a row's logits in 32 bits

  const dlpack::Tensor* row_loss = nullptr;
  if (loss != nullptr) {
    batch.loss_format = format_of(loss->dtype);
    if (!is_real(batch.loss_format) || !same_device(logits, *loss)) return std::nullopt;
    if (loss->ndim != 0 && same_shape(*loss, target)) {
      row_loss = loss;
      batch.loss_kind = kLossPerRow;
    } else if (size_of(*loss) == 1) {
      batch.loss_kind = kMeanLoss;
    } else {
      return std::nullopt;
    }
    batch.loss = data_of(*loss);
  } else if (options.cross_entropy) {
    batch.loss_kind = kCrossEntropy;
    batch.class_weight_sum = static_cast<double>(batch.classes);
    batch.label_smoothing = options.label_smoothing;
    if (!options.class_weight.empty()) {
      if (static_cast<I64>(options.class_weight.size()) != batch.classes) return std::nullopt;
      batch.class_weight = options.class_weight.data();
      batch.class_weight_sum = options.class_weight_sum;
    }
  }

  // All but the classes' dimension of the logits are those of the other tensors.
  std::array<int64_t, kMostDimsOfTorch> shape;
  std::array<int64_t, kMostDimsOfTorch> strides;
  const auto leave_out_classes = [&](const int64_t* from, int64_t* to) {
    std::copy(from + class_dim + 1, from + logits.ndim, std::copy_n(from, class_dim, to));
  };
  leave_out_classes(logits.shape, shape.data());
  leave_out_classes(logits.strides, strides.data());
  dlpack::Tensor logits_of_rows = logits;
  --logits_of_rows.ndim;
  logits_of_rows.shape = shape.data();
  logits_of_rows.strides = strides.data();
  enum { kLogits, kTargets, kWeights, kLosses };
  const std::array<const dlpack::Tensor*, 4> tensors{&logits_of_rows, &target, weight, row_loss};
  const std::optional<ElementBatch> rows = make_element_batch(tensors);
  if (!rows) return std::nullopt;
  batch.rows = rows->elements;
  batch.dims = rows->dims;
  for (int dim = 0; dim < batch.dims; ++dim) {
    batch.sizes[dim] = rows->sizes[dim];
    batch.reciprocals[dim] = rows->reciprocals[dim];
    batch.logits_strides[dim] = rows->operands[kLogits].strides[dim];
    batch.target_strides[dim] = rows->operands[kTargets].strides[dim];
    batch.weight_strides[dim] = rows->operands[kWeights].strides[dim];
    batch.loss_strides[dim] = rows->operands[kLosses].strides[dim];
  }
  batch.logits = rows->operands[kLogits].data;
  batch.target = rows->operands[kTargets].data;
  batch.weight = rows->operands[kWeights].data;
  batch.weight_format = rows->operands[kWeights].format;
  batch.ignore_index = options.ignore_index;
  std::copy_n(options.topk.begin(), options.topk_count, batch.topk);
  batch.confusion = options.confusion ? 1 : 0;
  batch.ema = options.ema;
  return batch;
}

Batch batch_of_rows(const MetricOptions& options, const ElementBatch& rows) {
  Batch batch{};
  batch.rows = rows.elements;
  batch.ema = options.ema;
  if (rows.operands[kRowLoss].data != nullptr) batch.loss_kind = kLossPerRow;
  if (rows.operands[kRowRank].data != nullptr)
    std::copy_n(options.topk.begin(), options.topk_count, batch.topk);
  else if (rows.operands[kRowCorrect].data != nullptr && options.topk[0] == 1)
    batch.topk[0] = 1;  // it stands first, as they ascend
  return batch;
}

}  // namespace pig::metrics
