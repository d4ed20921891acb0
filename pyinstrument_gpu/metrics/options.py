# SPDX-License-Identifier: Apache-2.0
"""The options of a MetricAccumulator, and the checks that tensors and numbers fit them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pyinstrument_gpu.metrics.state import MAX_TOPK, STATE_DTYPE
from pyinstrument_gpu.patching.device_memory import outside_modes
from pyinstrument_gpu.patching.tensor_device import is_fake

MAX_NAME_BYTES = 64
_LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_TARGET_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8)
_MAX_CLASSES = 1 << 14
"""Of a confusion matrix: one of so many takes 2 GB."""


@dataclass(frozen=True)
class MetricOptions:
    """Checked arguments of `MetricAccumulator`, which describes them."""

    topk: tuple[int, ...] = ()
    num_classes: int | None = None
    confusion: bool = False
    ignore_index: int = -100
    class_dim: int = 1
    ema: float | None = None
    cross_entropy: bool = True
    label_smoothing: float = 0.0
    class_weight: Tensor | None = None
    _class_weight_on: dict[torch.device, Tensor] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        num_classes = self.num_classes
        if len(self.topk) > MAX_TOPK or not all(type(k) is int and k >= 1 for k in self.topk):
            raise ValueError(f"topk must be up to {MAX_TOPK} whole numbers >= 1, got {self.topk!r}")
        if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
            raise ValueError(f"num_classes must be an int >= 1 or None, got {num_classes!r}")
        if self.confusion and (num_classes is None or num_classes > _MAX_CLASSES):
            raise ValueError(
                f"confusion=True needs num_classes, at most {_MAX_CLASSES}, got {num_classes!r}"
            )
        if type(self.ignore_index) is not int or not -(2**63) <= self.ignore_index < 2**63:
            raise ValueError(f"ignore_index must be an int of 64 bits, got {self.ignore_index!r}")
        if self.class_dim not in (1, -1):
            raise ValueError(
                "class_dim must be 1, for (N, C, ...), or -1, for (N, ..., C), "
                f"got {self.class_dim!r}"
            )
        ema = self.ema
        if ema is not None and not (isinstance(ema, (int, float)) and 0 < ema < 1):
            raise ValueError(
                f"ema must be a number between 0 and 1, such as 0.98, or None, got {ema!r}"
            )
        smoothing = self.label_smoothing
        if not isinstance(smoothing, (int, float)) or not 0 <= smoothing <= 1:
            raise ValueError(f"label_smoothing must be from 0 to 1, got {smoothing!r}")
        plain: dict[str, Any] = {
            "confusion": bool(self.confusion),
            "cross_entropy": bool(self.cross_entropy),
            "label_smoothing": float(smoothing),
        }
        if self.class_weight is not None:
            weights = _checked_class_weight(self.class_weight, num_classes)
            plain |= {"class_weight": weights, "num_classes": len(weights)}
        if not self.cross_entropy and (smoothing or self.class_weight is not None):
            raise ValueError(
                "label_smoothing and class_weight are for the cross-entropy: they need "
                "cross_entropy=True"
            )
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def confusion_classes(self) -> int:
        """Number of classes of the confusion matrix; 0 when there is none."""
        return self.num_classes or 0 if self.confusion else 0

    @property
    def state_bytes(self) -> int:
        """Size of the state with its confusion matrix."""
        return STATE_DTYPE.itemsize + 8 * self.confusion_classes**2

    def class_weight_on(self, device: torch.device) -> Tensor | None:
        """The weights of the classes on a device, float64; None where all are 1. They are copied
        there once."""
        if self.class_weight is None or device.type == "cpu":
            return self.class_weight
        if device not in self._class_weight_on:
            weights = self.class_weight
            with outside_modes():
                if device.type == "cuda":
                    weights = weights.pin_memory()  # a copy from other memory would be waited for
                self._class_weight_on[device] = weights.to(device, non_blocking=True)
        return self._class_weight_on[device]

    def native_arguments(self) -> dict[str, Any]:
        """Return the arguments of `_C.MetricAccumulator`, besides `counts`."""
        weights = [] if self.class_weight is None else self.class_weight.tolist()
        return {
            **self._given,
            "num_classes": self.num_classes or 0,
            "class_weight": weights,
            "class_weight_sum": sum(weights),
        }

    def described(self) -> dict[str, Any]:
        """The options as JSON can hold them, to be compared with others'; of a tensor what tells it
        from others."""
        return {name: _plain(value) for name, value in self._given.items()}

    @property
    def _given(self) -> dict[str, Any]:
        names = [each.name for each in fields(self) if each.compare]
        return {name: getattr(self, name) for name in names}

    def class_axis(self, ndim: int) -> int:
        return 1 if self.class_dim == 1 else ndim - 1

    def check(
        self, logits: Tensor, target: Tensor, loss: Tensor | None, weight: Tensor | None
    ) -> None:
        """Raise TypeError or ValueError unless the tensors fit each other and the options."""
        tensors = {"logits": logits, "target": target, "loss": loss, "weight": weight}
        _check_tensors(tensors, ("loss", "weight"))
        if logits.dtype not in _LOGIT_DTYPES:
            raise TypeError(f"logits must be floating-point numbers, got {logits.dtype}")
        if target.dtype not in _TARGET_DTYPES:
            raise TypeError(f"target must hold class indices as integers, got {target.dtype}")
        if logits.ndim < 2:
            raise ValueError(
                "logits must have a dimension for the rows and one for the classes, "
                f"got shape {tuple(logits.shape)}"
            )
        axis = self.class_axis(logits.ndim)
        classes = logits.shape[axis]
        if self.num_classes is not None and classes != self.num_classes:
            raise ValueError(
                f"logits have {classes} classes in dimension {axis} of {tuple(logits.shape)}, "
                f"num_classes is {self.num_classes}: class_dim may be wrong"
            )
        expected = logits.shape[:axis] + logits.shape[axis + 1 :]
        if target.shape != expected:
            raise ValueError(
                f"target must have the shape of the logits without the classes, {tuple(expected)}, "
                f"got {tuple(target.shape)}: the logits have shape {tuple(logits.shape)}, "
                f"class_dim is {self.class_dim}"
            )
        if loss is not None and loss.numel() != 1 and loss.shape != expected:
            raise ValueError(
                "loss must be one number or have the shape of the target, "
                f"{tuple(expected)}, got {tuple(loss.shape)}"
            )
        if loss is not None and not loss.is_floating_point():
            raise TypeError(f"loss must be floating-point, got {loss.dtype}")
        if weight is not None and weight.shape != expected:
            raise ValueError(
                f"weight must have the shape of the target, {tuple(expected)}: one weight per row; "
                f"got {tuple(weight.shape)}"
            )

    def check_rows(
        self,
        loss: Tensor | None,
        correct: Tensor | None,
        rank: Tensor | None,
        entropy: Tensor | None,
        weight: Tensor | None,
        mask: Tensor | None,
    ) -> None:
        """Raise TypeError or ValueError unless these fit each other."""
        known = {"loss": loss, "correct": correct, "rank": rank, "entropy": entropy}
        if all(tensor is None for tensor in known.values()):
            raise ValueError("the rows have no values: give loss, correct, rank or entropy")
        if correct is not None and rank is not None:
            raise ValueError("give either correct or rank: a row is correct if its rank is 0")
        given = {**known, "weight": weight, "mask": mask}
        _check_alike(given, optional=given)


def differences(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return how descriptions differ, as in "topk=[1] instead of [1, 5]"; empty if they don't."""
    return ", ".join(
        f"{name}={given.get(name)!r} instead of {wanted.get(name)!r}"
        for name in dict.fromkeys([*wanted, *given])
        if given.get(name) != wanted.get(name)
    )


def _check_tensors(tensors: Mapping[str, Any], optional: Collection[str]) -> dict[str, Tensor]:
    """Raise TypeError or ValueError unless all are tensors of real numbers on one device. Those
    that are optional may be None. Returns the others."""
    given = {
        name: each for name, each in tensors.items() if each is not None or name not in optional
    }
    first = next(iter(given))
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.device != given[first].device:
            raise ValueError(
                f"all tensors must be on one device: {first} is on {given[first].device}, "
                f"{name} is on {tensor.device}"
            )
        if tensor.is_meta:
            raise ValueError(f"{name} is on the device meta: it has no values")
        if tensor.is_complex():
            raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    return given


def _check_alike(tensors: Mapping[str, Any], optional: Collection[str] = ("weight",)) -> None:
    """Check tensors as above, and raise ValueError unless all have the shape of the first one."""
    given = _check_tensors(tensors, optional)
    first, shape = next((name, tensor.shape) for name, tensor in given.items())
    for name, tensor in given.items():
        if tensor.shape != shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(shape)}, got {tuple(tensor.shape)}"
            )


def checked_scalar(name: str, value: Any, weight: Any) -> Tensor | float:
    """A value as a tensor or one real number; raises TypeError or ValueError, also where the name
    is no name or the weight is none."""
    if isinstance(value, Tensor):
        _check_alike({f"the value of {name!r}": value, "weight": weight})
    elif not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    elif weight is not None:
        raise TypeError(f"{name} must be a tensor if it has a weight, got {type(value).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {type(name).__name__}")
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"name must have 1 to {MAX_NAME_BYTES} bytes, got {name!r}")
    if isinstance(value, Tensor):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _checked_class_weight(class_weight: Any, num_classes: int | None) -> Tensor:
    if not isinstance(class_weight, Tensor):
        raise TypeError(f"class_weight must be a tensor, got {type(class_weight).__name__}")
    if class_weight.ndim != 1 or not len(class_weight) or class_weight.is_complex():
        raise ValueError(
            "class_weight must hold one real number for each class, got a tensor of "
            f"{class_weight.dtype} with shape {tuple(class_weight.shape)}"
        )
    if num_classes not in (None, len(class_weight)):
        raise ValueError(
            f"class_weight has {len(class_weight)} weights, num_classes is {num_classes}"
        )
    if class_weight.is_meta or is_fake(class_weight):
        raise ValueError("class_weight has no values: it stands for a shape only")
    with outside_modes():
        weights = class_weight.detach().to("cpu", torch.float64).clone().contiguous()
        wrong = ~(weights.isfinite() & (weights >= 0))
        if wrong.any():
            raise ValueError(
                f"class_weight must be finite and not negative, got {float(weights[wrong][0])}"
            )
    return weights


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        content = value.detach().cpu().double().numpy().tobytes()
        return f"a tensor with SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"
    return list(value) if isinstance(value, tuple) else value
