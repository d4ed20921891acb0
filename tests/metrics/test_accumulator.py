# SPDX-License-Identifier: Apache-2.0
"""MetricAccumulator: the values, against other means, against PyTorch's order, and case by case."""

from __future__ import annotations

import copy
import math
import pickle
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from tests.helpers.metric_cases import (
    Case,
    assert_same,
    at_once,
    both_ways,
    computed,
    expected,
    random_case,
)

torch = pytest.importorskip("torch")
nan = math.nan


def update(metrics: pig.MetricAccumulator, case: Case) -> pig.MetricAccumulator:
    metrics.update(case.logits, case.target, case.loss, case.weight)
    return metrics


# --- against other means ---


@settings(max_examples=150)
@given(st.integers(0, 2**63 - 1))
def test_random_updates_against_plain_python(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    case = random_case(generator, cross_entropy=True)

    wanted = expected([case])
    for metrics in both_ways(**case.options):
        assert_same(update(metrics, case).compute(), wanted)


def check_against_reference(seed: int) -> None:
    case = random_case(torch.Generator().manual_seed(seed), cross_entropy=True)
    with_matrix = seed % 2 == 0 and case.classes <= 64
    options = {"confusion": True, "num_classes": case.classes} if with_matrix else {}

    got, wanted = (
        update(metrics, case).compute() for metrics in both_ways(**case.options, **options)
    )
    error = 1e-12 if case.logits.dtype == torch.float64 else 1e-5
    assert_same(got, computed(wanted, error) if case.loss is None else wanted)


def test_sweep_against_the_torch_reference() -> None:
    for seed in range(400):
        check_against_reference(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_long_sweep_against_the_torch_reference(part: int) -> None:
    for seed in range(part * 1000, (part + 1) * 1000):
        check_against_reference(seed)


def test_several_updates_against_plain_python() -> None:
    generator = torch.Generator().manual_seed(1)
    cases: list[Case] = []
    while len(cases) < 30:
        case = random_case(generator)
        tensors = case.logits, case.target, case.loss, case.weight
        cases.append(Case(*tensors, case.class_dim, (1, 5), cross_entropy=True))
    cases = [case for case in cases if case.class_dim == -1]
    for metrics in both_ways(**cases[0].options):
        for case in cases:
            update(metrics, case)
        assert_same(metrics.compute(), expected(cases))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("classes", [1000, 70_000])
def test_wide_rows(dtype: Any, classes: int) -> None:
    """More classes than a 16-bit lane can count, and rows shared among threads."""
    torch.set_num_threads(3)
    generator = torch.Generator().manual_seed(classes)
    rows = 24
    logits = torch.randn(rows, classes, generator=generator).to(dtype)
    target = torch.randint(classes, (rows,), generator=generator)
    target[0], target[1] = 0, classes - 1
    logits[2], logits[3] = 1, 0  # all equal
    logits[4, -1] = nan
    position = torch.sort(logits, dim=1, descending=True, stable=True).indices == target[:, None]
    ranks = position.int().argmax(dim=1)
    topk = tuple(sorted({1, 5, *((ranks[:6] + 1).tolist())}))
    metrics = pig.MetricAccumulator(topk=topk)

    metrics.update(logits, target)
    values = metrics.compute()

    for k in topk:
        assert values[f"accuracy@{k}"] == int((ranks < k).sum()) / rows
    assert values["nonfinite_rows"] == 1
    across = pig.MetricAccumulator(topk=topk)
    across.update(logits.t().contiguous().t(), target)
    assert_same(across.compute(), computed(values, 1e-5))


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40_000, 100, generator=generator)
    target = torch.randint(100, (40_000,), generator=generator)
    weight = torch.rand(40_000, generator=generator)
    results = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        metrics = pig.MetricAccumulator(num_classes=100, confusion=True)
        metrics.update(logits, target, weight, weight)
        values = metrics.compute()
        matrix = values.pop("confusion_matrix")
        assert math.fsum(matrix.flat) == pytest.approx(math.fsum(weight.tolist()))
        results.append(
            {k: v for k, v in values.items() if not k.startswith(("precision", "recall", "f1"))}
        )
    assert results[0] == results[1] == results[2]


# --- PyTorch's order ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "row",
    [
        [1, 1, 1, 1],
        [0.0, -0.0, 0.0, -0.0],
        [-0.0, 0.0, -1, 0.0],
        [nan, 1, nan, math.inf],
        [1, math.inf, math.inf, nan],
        [-math.inf, -math.inf, -1, -math.inf],
        [-nan, nan, -nan, 3],
    ],
)
@pytest.mark.parametrize("width", [4, 64, 257])
def test_top_1_is_argmax(dtype: Any, row: list[float], width: int) -> None:
    logits = torch.tensor((row * width)[:width], dtype=dtype).expand(width, width)
    metrics = pig.MetricAccumulator(topk=1, num_classes=width, confusion=True)

    metrics.update(logits, torch.arange(width))

    predicted = int(logits[0].argmax())
    values = metrics.compute()
    assert values["accuracy@1"] == 1 / width
    matrix = torch.tensor(values["confusion_matrix"])
    assert matrix[:, predicted].tolist() == [1] * width


# --- what counts ---


def test_a_loop_as_it_is_written() -> None:
    metrics = pig.MetricAccumulator(topk=(1, 2))
    assert metrics.latest() is None
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]], requires_grad=True)

    metrics.update(logits, torch.tensor([0, 1]), torch.tensor(0.5))
    metrics.update(logits[:1], torch.tensor([2]), torch.tensor(2.0))

    reading = metrics.latest()
    assert reading is not None
    assert (reading.update, reading.step) == (2, None)
    assert reading.values == metrics.compute()
    assert reading.values == {
        "count": 3,
        "loss": 1.0,
        "loss_min": 0.5,
        "loss_max": 2.0,
        "loss_last": 2.0,
        "perplexity": math.exp(1),
        "entropy": math.nan,
        "accuracy@1": 1 / 3,
        "accuracy@2": 2 / 3,
        "nonfinite": 0,
        "nonfinite_rows": 0,
        "nonfinite_losses": 0,
        "first_nonfinite_update": None,
        "ignored": 0,
        "invalid": 0,
        "lost_updates": 0,
    }


def test_reset_forgets_the_values_and_goes_on_numbering() -> None:
    metrics = pig.MetricAccumulator(topk=1, num_classes=2, confusion=True)
    metrics.update(torch.ones(4, 2), torch.zeros(4, dtype=torch.long), torch.tensor(nan))
    metrics.reset()

    assert metrics.latest() is None
    values = metrics.compute()
    assert (values["count"], values["first_nonfinite_update"]) == (0, None)
    assert all(math.isnan(values[name]) for name in ("loss", "accuracy@1", "f1_macro"))
    assert values["confusion_matrix"].tolist() == [[0, 0], [0, 0]]
    metrics.update(torch.ones(1, 2), torch.ones(1, dtype=torch.long), torch.tensor(nan))
    values = metrics.compute()
    assert (values["count"], values["first_nonfinite_update"]) == (1, 2)


def test_rows_that_do_not_count_are_not_read() -> None:
    logits = torch.full((3, 4), nan)
    metrics = pig.MetricAccumulator()
    metrics.update(logits, torch.tensor([-100, 4, -1]))

    values = metrics.compute()
    assert (values["ignored"], values["invalid"], values["count"]) == (1, 2, 0)
    assert values["nonfinite"] == 0


def test_running_values() -> None:
    metrics = pig.MetricAccumulator()
    for value in (2.0, nan, 4.0):
        metrics.update_scalar("grad_norm", torch.tensor(value))
    metrics.update_scalar("tokens", 128)
    metrics.update_scalar("tokens", torch.tensor([64], dtype=torch.int32))
    metrics.update_scalar("lr", torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True))

    values = metrics.compute()
    assert values["grad_norm"] == 3
    assert (values["grad_norm_min"], values["grad_norm_max"]) == (2, 4)
    assert (values["grad_norm_last"], values["grad_norm_nonfinite"]) == (4, 1)
    assert values["tokens_sum"] == 192
    assert values["lr"] == 0.5
    reading = metrics.latest()
    assert reading is not None and reading.update == 0 and reading.values["tokens_last"] == 64


@pytest.mark.parametrize(
    "name",
    ["loss", "count", "accuracy@1", "accuracy@7", "f1_macro", "reference_updates", "lr_max", "l"],
)
def test_a_running_value_takes_no_other_values_place(name: str) -> None:
    metrics = pig.MetricAccumulator(topk=(1, 5))
    metrics.update(LOGITS, TARGET, torch.tensor(3.0))
    metrics.update_scalar("lr", 0.5)
    metrics.update_scalar("l_max", 0.5)
    before = metrics.compute()
    for value in (1.0, torch.tensor(1.0)):
        with pytest.raises(ValueError, match=f"{name!r} can't be the name of a running value"):
            metrics.update_scalar(name, value)
    metrics.update_scalar("lr", 0.5)  # its own keys are no hindrance

    assert list(metrics.compute()) == list(before)
    assert metrics.compute()["loss"] == 3


def test_no_room_for_another_running_value() -> None:
    metrics = pig.MetricAccumulator()
    for number in range(32):
        metrics.update_scalar(f"x{number}", 1.0)
    with pytest.warns(RuntimeWarning, match="left out, .*: 'x32' is one too many for 32"):
        metrics.update_scalar("x32", 1.0)
    metrics.update_scalar("x33", 1.0)
    metrics.update_scalar("x0", 1.0)
    values = metrics.compute()
    assert "x32" not in values and "x33" not in values
    assert (values["lost_updates"], values["x0_sum"]) == (2, 2)


# --- what does not fit ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topk": ()}, None),
        ({"topk": (0,)}, "topk"),
        ({"topk": True}, "topk"),
        ({"topk": range(1, 10)}, "topk"),
        ({"num_classes": 0}, "num_classes"),
        ({"confusion": True}, "num_classes"),
        ({"ignore_index": 0.5}, "ignore_index"),
        ({"class_dim": 2}, "class_dim"),
        ({"name": "x" * 65}, "name"),
    ],
)
def test_arguments(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert "accuracy@1" not in pig.MetricAccumulator(**options).compute()
        return
    with pytest.raises(ValueError, match=message):
        pig.MetricAccumulator(**options)


LOGITS, TARGET = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], TARGET), TypeError, "logits must be a tensor, got list"),
        ((LOGITS.int(), TARGET), TypeError, "logits must be floating-point"),
        ((LOGITS, TARGET.float()), TypeError, "target must hold class indices"),
        ((LOGITS[0], TARGET[0]), ValueError, r"got shape \(3,\)"),
        ((LOGITS, TARGET[:3]), ValueError, r"target must have the shape .*\(4,\), got \(3,\)"),
        ((LOGITS.t(), TARGET), ValueError, "class"),
        ((LOGITS, TARGET, torch.ones(2)), ValueError, r"loss must be .*\(4,\), got \(2,\)"),
        ((LOGITS, TARGET, torch.tensor(1)), TypeError, "loss must be floating-point"),
        ((LOGITS, TARGET, None, torch.ones(3)), ValueError, "one weight per row"),
        ((LOGITS, TARGET.to("meta")), ValueError, "target is on meta"),
    ],
)
def test_tensors_that_do_not_fit(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    metrics = pig.MetricAccumulator(num_classes=3)
    for _ in range(2):  # also once there is a state
        with pytest.raises(error, match=message):
            metrics.update(*arguments)
        metrics.update(LOGITS, TARGET)
    assert metrics.compute()["count"] == 8


# --- how it is done ---


def test_no_operator_is_dispatched_for_an_update() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.operators: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.operators.append(str(func))
            return func(*args, **(kwargs or {}))

    metrics = pig.MetricAccumulator(num_classes=3, confusion=True)
    logits = LOGITS.clone().requires_grad_()
    metrics.update(logits, TARGET)  # makes the state
    with Log() as log:
        metrics.update(logits, TARGET, logits.detach().sum(), torch.ones(4))
        seen_before = list(log.operators)
        metrics.update(logits, TARGET, None, None)
        metrics.update_scalar("x", torch.ones(()))
        metrics.latest()
    by_us = log.operators[len(seen_before) :]

    assert metrics.compute()["count"] == 12
    assert [name for name in by_us if name != "aten.ones.default"] == []


def test_every_line_of_the_list_is_a_field() -> None:
    """C++ takes all of them."""
    from pyinstrument_gpu.metrics import state

    text = Path(state.__file__).with_name("state_fields.h").read_text()
    for macro, dtype in (("SCALAR", state.SCALAR_DTYPE), ("(?:STATE|ROWS)", state.STATE_DTYPE)):
        names = re.findall(rf"^ *PIG_{macro}\([^,]*, *(\w+),", text, re.MULTILINE)
        assert dtype.names == tuple(names)
    metrics = pig.MetricAccumulator()
    metrics.update(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    assert metrics.reference_updates == 0  # C++ finds a state of the size it expects


# --- tensors and settings that are out of the ordinary ---


def test_views_of_the_negative() -> None:
    """The imaginary part of a conjugate: what is stored has the other sign."""
    metrics = pig.MetricAccumulator(topk=1)
    loss = torch.tensor([1 + 2j]).conj().imag[0]
    assert loss.is_neg()
    weight = torch._neg_view(-torch.tensor([1.0, 3.0]))
    metrics.update(torch._neg_view(-torch.eye(2)), torch.tensor([0, 0]), loss, weight)
    metrics.update_scalar("x", loss)

    values = metrics.compute()
    assert (values["accuracy@1"], values["loss"], values["x"]) == (1 / 4, -2, -2)


def test_a_state_made_in_inference_may_be_changed_outside() -> None:
    for each in both_ways(topk=1):
        with torch.inference_mode():
            each.update(torch.eye(2), torch.arange(2), torch.tensor(1.0))
            each.update_scalar("x", 1.0)
            copied = copy.deepcopy(each)
        for one in (each, copied):
            one.update(torch.eye(2), torch.arange(2))
            assert one.compute()["count"] == 4
            one.reset()
            assert one.compute()["count"] == 0


def test_a_process_gets_the_values_and_no_memory_that_it_would_share() -> None:
    """What is shared has to live until the process has it, which nothing would ensure."""
    from multiprocessing.reduction import ForkingPickler

    metrics = pig.MetricAccumulator()
    metrics.update(torch.eye(3), torch.arange(3))
    assert b"rebuild_storage" in bytes(ForkingPickler.dumps(torch.eye(3)))
    content = bytes(ForkingPickler.dumps(metrics))
    assert b"rebuild_storage" not in content
    assert ForkingPickler.loads(content).compute() == metrics.compute()


@pytest.mark.parametrize("by", ["copy", "deepcopy", "pickle"])
def test_a_copy_goes_on_by_itself(by: str) -> None:
    metrics = pig.MetricAccumulator(topk=1, num_classes=3, confusion=True, name="val")
    metrics.update(LOGITS, TARGET, torch.tensor(1.0))
    metrics.update_scalar("x", 2.0)
    copied_by = {"copy": copy.copy, "deepcopy": copy.deepcopy}
    other = copied_by.get(by, lambda each: pickle.loads(pickle.dumps(each)))(metrics)
    before = metrics.compute()
    assert str(other.compute()) == str(before)  # NaN is NaN
    other.update(LOGITS, TARGET)
    other.update_scalar("x", 4.0)
    other.update_scalar("of the copy", 1.0)

    assert str(metrics.compute()) == str(before)
    assert (other.compute()["count"], other.compute()["x"]) == (8, 3)
    reading = other.latest()
    assert reading is not None and reading.update == 2


def test_autocast_changes_nothing() -> None:
    loss = torch.tensor(1.0 + 2**-20, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for metrics in both_ways(topk=1):
            metrics.update(torch.eye(2), torch.arange(2), loss)
            assert metrics.compute()["loss"] == float(loss)


@pytest.mark.parametrize("transform", ["vmap", "functionalize", "grad"])
def test_inside_a_transformation(transform: str) -> None:
    """What has no numbers is lost, and said to be; nothing is read that is not there."""
    metrics = pig.MetricAccumulator(topk=1)
    metrics.update(LOGITS, TARGET)

    def evaluate(logits: Any) -> Any:
        metrics.update(logits, TARGET)
        return logits.sum()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if transform == "vmap":
            torch.vmap(evaluate)(torch.stack([LOGITS, LOGITS]))
        else:
            getattr(torch.func, transform)(evaluate)(LOGITS)
    values = metrics.compute()
    lost = [str(each.message) for each in caught if "lost_updates" in str(each.message)]
    assert values["lost_updates"] == len(lost)
    assert values["count"] == 8 - 4 * len(lost)
    assert (len(lost) == 0) == (transform == "grad")


def test_the_meta_device_has_no_values() -> None:
    with pytest.raises(ValueError, match="logits is on the device meta"):
        pig.MetricAccumulator().update(LOGITS.to("meta"), TARGET.to("meta"))


def test_numbers_before_tensors_say_nothing_of_the_device() -> None:
    metrics = pig.MetricAccumulator()
    metrics.update_scalar("lr", 0.5)
    metrics.update_scalar("lr", 1.5)
    with pytest.raises(ValueError, match="meta"):
        metrics.update(LOGITS.to("meta"), TARGET.to("meta"))
    metrics.update(LOGITS, TARGET)
    assert (metrics.compute()["lr"], metrics.compute()["count"]) == (1, 4)


@pytest.mark.parametrize("value", [None, "1.5", torch.ones((), dtype=torch.cfloat)])
def test_what_is_no_number(value: Any) -> None:
    metrics = pig.MetricAccumulator()
    with pytest.raises((TypeError, ValueError), match=r"x'? must (be|hold)"):
        metrics.update_scalar("x", value)
    assert "x" not in metrics.compute()


def test_numbers_of_other_kinds() -> None:
    metrics = pig.MetricAccumulator()
    for value in (True, 2, np.float32(0.5), np.int64(3), 10**400, torch.tensor(True)):
        metrics.update_scalar("x", value)
    values = metrics.compute()
    assert (values["x_sum"], values["x_nonfinite"], values["lost_updates"]) == (7.5, 1, 0)


def test_losses_that_are_no_tensors() -> None:
    metrics = pig.MetricAccumulator()
    for loss in (1.5, 2, np.float32(0.5), np.float64("nan"), torch.tensor(4.0)):
        metrics.update(LOGITS, TARGET, loss)
    values = metrics.compute()
    assert (values["loss"], values["loss_max"], values["nonfinite_losses"]) == (2, 4, 1)
    with pytest.raises(TypeError, match="loss must be a tensor, got str"):
        metrics.update(LOGITS, TARGET, "1.5")  # type: ignore[arg-type]


def test_threads_that_begin_at_once_share_one_state() -> None:
    for _ in range(20):
        metrics = pig.MetricAccumulator(topk=1)
        ready = threading.Barrier(4)

        def work(
            metrics: pig.MetricAccumulator = metrics, ready: threading.Barrier = ready
        ) -> None:
            ready.wait()
            metrics.update(LOGITS, TARGET)
            metrics.update_scalar("x", 1.0)

        at_once(*[work] * 4)
        values = metrics.compute()
        assert (values["count"], values["x_sum"]) == (16, 4)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 2, 3, 4, 6), (2, 5, 3, 0, 4, 6), (3, 0), (0, 0)])
def test_no_rows_or_no_classes(native: bool, shape: tuple[int, ...]) -> None:
    metrics = pig.MetricAccumulator(topk=1)
    if not native:
        metrics._native = None
    rows = (shape[0], *shape[2:])
    logits, target = torch.zeros(shape), torch.zeros(rows, dtype=torch.int64)
    metrics.update(logits, target, torch.zeros(rows), torch.ones(rows))
    metrics.update(logits.transpose(0, -1).contiguous().transpose(0, -1), target)

    values = metrics.compute()
    assert (values["count"], values["lost_updates"]) == (0, 0)
    assert values["invalid"] == 2 * target.numel()
    assert math.isnan(values["loss"]) and math.isnan(values["accuracy@1"])
    assert metrics.reference_updates == (0 if native else 2)


def test_an_update_without_rows_is_read() -> None:
    metrics = pig.MetricAccumulator(topk=1)
    for updates in (1, 2):
        assert metrics.latest() is None
        metrics.update(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
        reading = metrics.latest()
        assert reading is not None and reading.update == updates
        assert reading.values["count"] == 0 and math.isnan(reading.values["accuracy@1"])
        metrics.reset()
