# SPDX-License-Identifier: Apache-2.0
"""Where values first stopped being finite: in programs of which that is known."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.nonfinite import extremes
from pyinstrument_gpu.aspects.nonfinite.data import Nonfinite
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.patching import device_memory
from pyinstrument_gpu.report.notes import unknown
from tests.aspects.nonfinite.planted import AT, CASES, STEPS, Checkpointed, data, net
from tests.helpers.launched import launched, write
from tests.helpers.metric_gpu import BLOCKING_OR_ALLOCATING, metric_gpu

BAD = CASES["division by zero"].program


def known_of(recording: pig.Recording) -> Nonfinite:
    known = recording.run.nonfinite
    assert known is not None and not known.why_unknown
    return known


def found_in(name: str, nonfinite: int = 1) -> Nonfinite:
    with pig.record(nonfinite=nonfinite) as recording:
        CASES[name].program()
    return known_of(recording)


@pytest.mark.parametrize("name", CASES)
def test_the_module_is_right(name: str) -> None:
    known = found_in(name)
    origin = known.origin
    assert known.unknown_values == known.lost_steps == 0
    found = origin and (origin.step, origin.where, origin.module, origin.detail)
    assert found == CASES[name].truth, origin
    assert known.checked_steps == (STEPS if origin is None else origin.step + 1)


def test_magnitudes_on_the_way() -> None:
    origin = found_in("exp overflows").origin
    assert origin is not None and origin.value == "inf" and origin.module_class == "Planted"
    model = net()
    *_, (x, _) = [batch for _, batch in zip(range(AT + 1), data(), strict=False)]
    assert [one.module for one in origin.way] == ["0"]
    with torch.no_grad():  # its weights have changed little since
        assert origin.way[0].largest == pytest.approx(float(model[0](x).abs().max()), rel=0.1)


class Scores(nn.Module):
    """Attention of one head."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            for one in (self.q, self.k):
                one.weight.copy_(torch.eye(4) * scale)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).T).softmax(-1) @ x  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("dtype", "made"),
    [(torch.float16, 1e3), (torch.bfloat16, 1e20)],
    ids=["float16", "bfloat16"],
)
def test_the_way_to_scores_that_overflow(dtype: torch.dtype, made: float) -> None:
    """Queries and keys are finite, and their products are not."""
    model = net(Scores(made)).to(dtype)
    with torch.no_grad():
        weight, bias = model[0].parameters()
        weight.zero_(), bias.fill_(1)
    with pig.record(nonfinite=1) as recording, pig.gpu_step():
        model(torch.ones(2, 4, dtype=dtype)).sum().backward()
    origin = known_of(recording).origin
    assert origin is not None
    assert (origin.module, origin.where, origin.value) == ("1", "forward", "nan")
    assert [one.module for one in origin.way] == ["0", "1.q", "1.k"]
    assert [one.largest for one in origin.way] == pytest.approx([1, made, made], rel=0.01)
    told = "In float16, what is above 65,504 is infinite" in recording.run.report(verbose=True)
    assert told == (dtype == torch.float16)


def test_own_weights_are_on_the_way() -> None:
    model = net()
    with torch.no_grad():
        next(model.parameters()).fill_(1e30)
    with pig.record(nonfinite=1) as recording, pig.gpu_step():
        model(torch.full((2, 4), 1e30)).sum().backward()
    origin = known_of(recording).origin
    assert origin is not None and (origin.module, origin.value) == ("0", "inf")
    assert origin.way[0].module == "0.weight"
    assert origin.way[0].largest == pytest.approx(1e30)


def test_scaled_gradients_that_overflow_are_counted() -> None:
    assert found_in("scale too large").scaled_overflows == STEPS


def test_what_an_update_made_is_told_by_its_step() -> None:
    origin = found_in("update").origin
    assert origin is not None and (origin.finite_step, origin.update_step) == (0, 0)


def test_between_which_steps_it_began_if_few_are_checked() -> None:
    """Step 2 went wrong, and was not checked; step 3 is, and finds what step 2 left."""
    origin = found_in("division by zero", nonfinite=4).origin
    assert origin is not None
    assert (origin.step, origin.where, origin.module) == (3, "weights", "0")
    assert (origin.finite_step, origin.update_step) == (1, None)


def test_only_the_loss_of_a_step_was_looked_at() -> None:
    model = net()
    with pig.record(nonfinite=STEPS) as recording:
        for step in pig.gpu_steps(range(STEPS - 1)):
            (model(torch.ones(2, 4)) / (step < AT)).sum().backward()
    origin = known_of(recording).origin
    assert origin is not None and (origin.step, origin.where) == (AT, "unchecked")


def test_a_step_in_which_there_is_nothing_to_look_at_is_not_the_one_of_many() -> None:
    with pig.record(nonfinite=STEPS) as recording:
        for step in pig.gpu_steps(range(STEPS)):
            if step:
                net()(torch.ones(2, 4)).sum().backward()
    assert known_of(recording).checked_steps == 1


def without_gradients(model: nn.Sequential, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = model(x)
    return model(x) + y.clone()  # type: ignore[no-any-return]


def penalised(model: nn.Sequential, x: Tensor) -> Tensor:
    y = model(x.requires_grad_())
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y + gradient.square().sum()  # type: ignore[no-any-return]


def counted(model: nn.Sequential, x: Tensor) -> Tensor:
    with FlopCounterMode(display=False) as counter:
        y = model(x)
    return y * (counter.get_total_flops() > 0)  # type: ignore[no-any-return]


def mixed(model: nn.Sequential, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[nn.Sequential, Tensor], Tensor]] = {
    "plain": lambda model, x: model(x),
    "inference": without_gradients,
    "double backward": penalised,
    "modes": counted,
    "mixed precision": mixed,
    "vmap": lambda model, x: model(torch.vmap(model[0])(x)),
    "traced": lambda model, x: torch.jit.trace(model, x, check_trace=False)(x),
    "computed again": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "complex": lambda model, x: model(torch.fft.ifft(torch.fft.fft(x)).real),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_of_the_program_changes(way: Callable[[nn.Sequential, Tensor], Tensor]) -> None:
    def result() -> list[Tensor]:
        model = net(nn.ReLU(inplace=True), Checkpointed(torch.tanh, False), nn.Dropout())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, _ in pig.gpu_steps(data()):
            way(model, x).square().mean().backward()
            optimizer.step()
        return [*model.parameters(), torch.get_rng_state()]

    expected = result()
    with pig.record(nonfinite=1) as recording, pig.watch_syncs(as_if_cuda=True):
        found = result()
    assert all(map(torch.equal, expected, found))
    assert not recording.run.syncs.events["step"].size
    known = known_of(recording)
    assert known.checked_steps == STEPS and known.origin is None


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that were looked at."""
    found: list[Tensor] = []
    take = extremes.Measurements.take

    def noted(own: extremes.Measurements, tensor: Tensor) -> extremes.Place | None:
        found.append(tensor)
        return take(own, tensor)

    monkeypatch.setattr(extremes.Measurements, "take", noted)
    return found


def test_nodes_keep_no_hooks(taken: list[Tensor]) -> None:
    with pig.record(nonfinite=2):
        for step in pig.gpu_steps(range(2)):
            if step == 0:
                loss = net()(torch.ones(2, 4)).sum()
                loss.backward(retain_graph=True)
                assert len(taken) > 10
            taken.clear()
            loss.backward(retain_graph=True)
        assert len(taken) == 2  # and its gradient: the loss of a step that is not checked


def test_gradients_that_views_hand_on_are_looked_at_once(taken: list[Tensor]) -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    with pig.record(nonfinite=1) as recording, pig.gpu_step():
        roots = weight.T.sqrt().transpose(0, 1).unsqueeze(0).permute(1, 2, 0)
        roots.view(6).sum().reshape(1).backward()
    assert len(taken) == 2 + 2  # the loss and its gradient; those of the sum and of the roots
    origin = known_of(recording).origin
    assert origin is not None and (origin.where, origin.detail) == ("backward", "SqrtBackward0")


def test_a_program_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    with (
        pytest.raises(
            pig.NonFiniteError, match=r"^the first infinite value of step 2 was made by 1 \(Planted"
        ),
        pig.record(path, nonfinite=1, stop_on_nonfinite=True),
    ):
        BAD()
    run = Run.load(path)
    assert run.complete and run.nonfinite is not None and run.nonfinite.origin is not None
    assert len(run.steps) == AT + 2  # at the next step's backward pass


def test_values_of_a_gpu_come_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is simulated: its tensors are in host memory, and so is what would be pinned."""
    pages: list[extremes._Page] = []
    send, empty = extremes._Page.send, torch.empty

    def noted(page: extremes._Page) -> None:
        pages.append(page)
        send(page)

    def anywhere(*size: Any, pin_memory: bool = False, **how: Any) -> Tensor:
        return empty(*size, **how)

    monkeypatch.setattr(extremes._Page, "send", noted)
    with metric_gpu() as cuda:
        monkeypatch.setattr(torch, "empty", anywhere)
        begin = cuda.end_of_calls
        origin = found_in("division by zero").origin
        calls = {call.function for call in cuda.calls(since=begin)}
        monkeypatch.undo()
    assert not calls & set(BLOCKING_OR_ALLOCATING)
    assert origin is not None and (origin.step, origin.module) == (AT, "1")
    assert pages and all(page.host is not page.values for page in pages)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_page_is_here_when_each_of_its_values_is(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Also the last before others, as words of a copy may arrive in any order."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **how: empty(*size, **how))
    monkeypatch.setattr(device_memory, "on_cuda", lambda device: True)
    monkeypatch.setattr(device_memory, "remember_stream", lambda tensor: None)
    page = extremes._Page(torch.device("cpu"), dtype)
    assert [next(page.numbers) for _ in range(3)] == [0, 1, 2]
    monkeypatch.setattr(page, "host", torch.empty_like(page.host))  # where no copy of ours arrives
    # A NaN of the program's whose bits are those of the one that stands for nothing.
    page.values[0, 1].copy_(torch.from_numpy(page._bits).view(dtype)[0, 0])
    page.send()
    values = torch.from_numpy(page._bits).view(dtype)
    last = ((1, -1), (0, 0), (1, 0), (0, 1), (0, 2), (1, 1))
    for row, column in itertools.product(range(2), range(extremes._PAGE)):
        if (row, column) not in last and (row, column) != (1, extremes._PAGE - 1):
            values[row, column] = page.values[row, column]
    for cell in last:
        assert not page.is_here
        values[cell] = page.values[cell]
    assert page.is_here
    assert values[0, 1].isnan()
    page.clear()
    assert not values.isfinite().any()


def test_values_that_arrive_late(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False] * 3 + [True] * 99)
    monkeypatch.setattr(extremes._Page, "is_here", property(lambda _: next(looks)))
    assert found_in("division by zero").origin == found_in("division by zero").origin


def test_values_that_never_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes._Page, "is_here", False)
    with pig.record(nonfinite=1) as recording:
        BAD()
    assert known_of(recording).lost_steps == STEPS
    assert "Values that are not finite: those of 4 steps did not arrive." in unknown(recording.run)


def test_a_program_under_run(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            loss = model(torch.full((2, 4), 1e38 * (step == 2))).log().sum()
            loss.backward()
            optimizer.step()
        """,
    )
    done = launched(tmp_path, "--nonfinite=1", "--stop-on-nonfinite", "train.py", imported="torch")
    assert done.returncode == 1
    assert "pyinstrument_gpu.errors.NonFiniteError: the first " in done.stderr
    run = Run.load(tmp_path / "run.gpurun")
    assert run.complete and run.nonfinite is not None and run.nonfinite.origin is not None
    assert run.nonfinite.origin.step == 2
    printed = run.report()
    assert len(printed.splitlines()) <= 25 and "value of step 2 was made by" in printed
