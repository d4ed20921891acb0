# SPDX-License-Identifier: Apache-2.0
"""`auto_phases` in a process that has torch: what is patched, what survives, what is put back."""

import contextlib
import gc
import importlib
import io
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from tests.helpers.spans import dropped_of, spans_of
from tests.helpers.threads import on_thread


def counts(run: Run, scope: Scope = Scope.STEP) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases_in(scope).items()}


def all_counts(run: Run) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases.items()}


@pytest.fixture
def recording() -> Iterator[pig.Recording]:
    """A recording with automatic phases; the test stops it."""
    with pig.record() as recording, pig.auto_phases():
        yield recording


def train(count: int = 3) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(8 * count, 4), torch.randint(0, 2, (8 * count,)))
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_metrics_are_a_phase_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torchmetrics, as its import takes seconds."""
    (tmp_path / "torchmetrics.py").write_text(
        "from torch import nn\nclass Metric(nn.Module): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchmetrics", raising=False)

    with pig.record() as recording, pig.auto_phases():
        torchmetrics = importlib.import_module("torchmetrics")

        class Accuracy(torchmetrics.Metric):  # type: ignore[name-defined, misc]
            def forward(self, x: Tensor) -> Tensor:
                return x.mean()

        model, accuracy = nn.Linear(4, 2), Accuracy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            output = model(torch.ones(8, 4))
            optimizer.zero_grad()
            output.mean().backward()
            optimizer.step()
            accuracy(output.detach())
    del sys.modules["torchmetrics"]
    found = all_counts(recording.run)
    assert (found["metrics"], found["forward"]) == (3, 3)


# What is put back


def test_hooks_go() -> None:
    train()  # imports what it needs
    hooks = importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks
    with pig.auto_phases():
        assert len(hooks) == 1
        train()
    assert not hooks
    with pig.record() as recording:
        train()
        with pig.gpu_step():
            pass
    assert len(recording.run.steps) == 1


def test_put_back_after_an_exception() -> None:
    with pig.record() as recording:
        with pytest.raises(KeyError), pig.auto_phases():
            raise KeyError
        train()
    assert all_counts(recording.run) == {}


def test_inside_itself_it_does_nothing() -> None:
    with pig.record() as recording, pig.auto_phases():
        with pig.auto_phases():
            train(1)
        train(1)
    assert all_counts(recording.run)["forward"] == 2


def test_function_that_was_kept_calls_through_afterwards(recording: pig.Recording) -> None:
    kept = functional.mse_loss
    loss = kept(torch.ones(2), torch.zeros(2))
    auto._active.remove()  # type: ignore[union-attr]
    assert torch.equal(kept(torch.ones(2), torch.zeros(2)), loss)
    assert all_counts(recording.stop()) == {"loss": 1}


# What is recorded


def test_phases_nest_with_those_of_the_program(recording: pig.Recording) -> None:
    model = nn.Linear(4, 2)

    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            with pig.gpu_phase("attention"):
                result: Tensor = self.inner(x)
            return result

    with pig.gpu_phase("mine"):
        Wrapping()(torch.randn(1, 4))
    assert list(all_counts(recording.stop())) == ["mine", "mine/forward", "mine/forward/attention"]


@pytest.mark.parametrize("wait", ["gpu_steps", "gpu_step"])
def test_own_steps_are_the_only_ones(recording: pig.Recording, wait: str) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)

    def work(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    if wait == "gpu_steps":
        for (x,) in pig.gpu_steps(loader):
            work(x)
    else:
        for (x,) in loader:
            with pig.gpu_step():
                work(x)
    run = recording.stop()
    assert run.step_totals.complete == 4
    assert dropped_of(run) == {}
    assert counts(run)["forward"] == 4
    assert sum(counts(run).values()) == (16 if wait == "gpu_steps" else 12)


def test_lines_of_the_program_that_called_each_phase_first() -> None:
    phases = auto.AutoPhases()
    phases.install()
    try:
        train()
        train()
    finally:
        phases.remove()
    first = train.__code__.co_firstlineno
    loop, clear, forward, step = (first + line for line in (4, 5, 6, 7))
    assert phases.lines == {
        "data start": (__file__, loop),
        "data": (__file__, loop),
        "zero_grad": (__file__, clear),
        "forward": (__file__, forward),
        "loss": (__file__, forward),
        "backward": (__file__, forward),
        "optimizer": (__file__, step),
    }
    assert {"phase": "optimizer", "file": __file__, "line": step} in phases.facts()["phase_lines"]


def test_exception_closes_the_phase(recording: pig.Recording) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            Failing()(torch.ones(1))
    run = recording.stop()
    assert all_counts(run) == {"forward": 2}
    assert not run.open_phases


def test_exception_in_an_optimizer_closes_its_phase(recording: pig.Recording) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("no")

    parameter = nn.Parameter(torch.ones(1))
    optimizer = Failing([parameter], lr=0.1)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        with pig.gpu_phase("after"):
            nn.Linear(1, 1)(torch.ones(1))
    with pytest.raises(ValueError, match="no"):
        optimizer.step()
    nn.utils.clip_grad_norm_([parameter], 1.0)
    nn.utils.clip_grads_with_norm_([parameter], 1.0, torch.tensor(2.0))
    with pig.gpu_phase("outside"):
        pass
    run = recording.stop()
    assert all_counts(run)["optimizer"] == 3
    assert all_counts(run)["clip"] == 2
    assert "outside" in run.phases
    assert not any(path.startswith("optimizer/optimizer") for path in run.phases)


def test_steps_of_the_program_s_own_within_each_other_time_the_data_once(
    recording: pig.Recording,
) -> None:
    def batches() -> Iterator[Tensor]:
        for (x,) in pig.gpu_steps(DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)):
            yield next(iter(DataLoader(x)))

    assert len(list(pig.gpu_steps(batches()))) == 2
    assert "data start" not in recording.stop().names


def test_threads_have_phases_and_no_steps() -> None:
    with pig.record() as recording, pig.auto_phases():
        on_thread(nn.Linear(4, 2), torch.ones(1, 4), name="other")
    run = recording.run
    assert [(span.path, span.thread) for span in spans_of(run)] == [("forward", "other")]
    assert run.step_totals.count == 0


def test_training_in_another_thread_has_whole_steps() -> None:
    with pig.record() as recording, pig.auto_phases():
        on_thread(train, name="trainer")
    run = recording.run
    assert run.step_totals.complete == run.step_totals.count == 3
    assert counts(run) == {
        "data": 3,
        "zero_grad": 3,
        "forward": 3,
        "loss": 3,
        "backward": 3,
        "optimizer": 3,
    }


def test_optimizer_of_one_thread_during_the_backward_pass_of_another(
    recording: pig.Recording,
) -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    in_backward, may_go_on = threading.Event(), threading.Event()

    def backward() -> None:
        x = torch.ones(1, requires_grad=True)

        def wait(gradient: Tensor) -> None:
            in_backward.set()
            may_go_on.wait()

        x.register_hook(wait)
        x.sum().backward()

    thread = threading.Thread(target=backward)
    thread.start()
    in_backward.wait()
    optimizer.step()
    may_go_on.set()
    thread.join()
    run = recording.stop()
    # The thread's step is cut short by the update, which is another thread's.
    assert counts(run) == {"optimizer": 1, "backward": 1}
    assert [step.complete for step in run.steps] == [False, False]


def test_session_inside_an_activity_of_an_earlier_one() -> None:
    inner = nn.Linear(1, 1)
    with pig.record() as recording, contextlib.ExitStack() as first:
        first.enter_context(pig.auto_phases())

        class Outer(nn.Module):
            def forward(self, x: Tensor) -> Any:
                first.close()
                with pig.auto_phases():
                    return inner(x)

        Outer()(torch.ones(1))
    assert all_counts(recording.run) == {"forward": 1, "forward/forward": 1}


def test_copies_to_a_device(recording: pig.Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_device, "HOST_TYPES", {"cpu"})
    tensor = torch.ones(3, dtype=torch.float32)
    on_device = tensor.to("meta")
    tensor.to(torch.device("meta"), torch.float64, non_blocking=True)
    tensor.to(device="meta")
    tensor.to(on_device)
    tensor.to(torch.float64, True)
    tensor.to("cpu")
    on_device.to("meta")
    on_device.copy_(tensor)
    tensor.copy_(torch.zeros(3))
    with pytest.raises(TypeError):
        tensor.to(object())  # type: ignore[call-overload]
    assert all_counts(recording.stop()) == {"h2d": 5}
    assert auto._active is not None
    assert auto._active.copies == {(False, False): [4, 48], (False, True): [1, 12]}


def test_the_recorder_raises_nothing() -> None:
    def fail() -> None:
        raise RuntimeError("ours")

    phases = auto.AutoPhases(on_step_end=fail)
    with pig.record() as recording:
        phases.install()
        train()
        phases.remove()
    assert str(phases.error) == "ours"
    assert all_counts(recording.run)["forward"] == 3


def test_what_is_no_exception_reaches_the_program() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt  # as a signal handler does that happens to run there

    phases = auto.AutoPhases(on_step_end=interrupt)
    with pig.record() as recording:
        phases.install()
        with pytest.raises(KeyboardInterrupt):
            train()
        phases.remove()
    assert all_counts(recording.run)["optimizer"] == 1


def test_torch_that_is_built_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    observe_calls = native.observe_calls
    monkeypatch.setattr(
        native, "observe_calls", lambda f, kind: kind != "data" and observe_calls(f, kind)
    )
    with (
        pytest.warns(RuntimeWarning, match="phases of _BaseDataLoaderIter.__next__ are not seen"),
        pig.record() as recording,
        pig.auto_phases(),
    ):
        train()
    assert "data" not in recording.run.phases
    assert all_counts(recording.run)["forward"] == 3


def test_error_while_hooking_leaves_nothing_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise AttributeError("no such thing in this torch")

    monkeypatch.setattr(native, "hook_call", fail)  # when all but h2d is there
    with (
        pytest.warns(RuntimeWarning, match="no such thing"),
        pig.record() as recording,
        pig.auto_phases(),
    ):
        train()
    assert all_counts(recording.run) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pig.auto_phases():  # nor does the program end of it
            train()


def test_interrupted_while_hooking(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(native, "hook_call", interrupt)
        with pig.auto_phases():
            pass
    with pig.record() as recording:
        train()
        with pig.auto_phases():
            train()
    assert all_counts(recording.run)["forward"] == 3


def test_session_that_ends_at_the_end_of_a_step_opens_no_other() -> None:
    phases = auto.AutoPhases(on_step_end=lambda: phases.remove())
    with pig.record() as recording:
        phases.install()
        train()
        with pig.gpu_step():
            pass
    assert recording.run.step_totals.count == recording.run.step_totals.complete == 2
    assert recording.run.dropped["nested_steps"] == 0


# What survives


def test_odd_modules(recording: pig.Recording) -> None:
    class NoInit(nn.Module):
        def __init__(self) -> None:  # without the base's
            pass

        def forward(self) -> int:
            return 1

    class Odd(nn.Module):
        def forward(self, module: int, original: int, args: int) -> int:
            return module + original + args

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    assert Odd()(module=1, original=2, args=3) == 6
    with pytest.raises(AttributeError):
        NoInit()()
    assert all_counts(recording.stop())["forward"] >= 1


def python_calls(submodules: int) -> int:
    """The number of Python functions called in a call of a module."""
    model = nn.Sequential(*(nn.Identity() for _ in range(submodules)))
    model.register_parameter("weight", nn.Parameter(torch.ones(1)))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    model(0)
    gc.disable()  # it may call functions of Python, too
    sys.setprofile(count)
    model(0)
    sys.setprofile(None)
    gc.enable()
    return calls


def test_submodules_cost_no_python_call() -> None:
    without = python_calls(7) - python_calls(0)
    with pig.auto_phases():
        assert python_calls(7) - python_calls(0) == without > 0


def test_submodules_called_in_special_ways(recording: pig.Recording) -> None:
    compiled, hooked, own = nn.Identity(), nn.Identity(), nn.Identity()
    compiled._compiled_call_impl = lambda x: x + 1
    hooked.register_forward_hook(lambda module, args, output: output + 10)

    class Own(nn.Module):
        def __call__(self, x: int) -> int:
            return int(super().__call__(x)) + 100

        def forward(self, x: int) -> int:
            return x + 1000

    model = nn.Sequential(compiled, hooked, own, Own())
    assert model(0) == 1111
    recording.stop()
    assert all_counts(recording.run) == {"forward": 1}


def test_arguments_by_name(recording: pig.Recording) -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.save(obj=None, f=io.BytesIO())
    nn.utils.clip_grad_norm_(parameters=parameter, max_norm=1.0)
    nn.utils.clip_grad_value_(parameters=parameter, clip_value=1.0)
    assert all_counts(recording.stop()) == {"checkpoint": 1, "clip": 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_functions_that_are_hooked() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def clipped(x: Tensor) -> Tensor:
        nn.utils.clip_grad_norm_([x], 1.0)
        nn.utils.clip_grad_value_([x], 1.0)
        return functional.triplet_margin_with_distance_loss(x, x + 1, x + 2)

    expected = clipped(torch.ones(2, 3))
    with pig.auto_phases():
        torch._dynamo.reset()
        assert torch.equal(clipped(torch.ones(2, 3)), expected)


def test_batch_that_contains_itself(recording: pig.Recording) -> None:
    batch: list[Any] = []
    batch.append(batch)
    assert list(DataLoader(TensorDataset(torch.ones(2)), 2, collate_fn=lambda _: batch)) == [batch]
    assert all_counts(recording.stop())["data"] == 1


def test_loop_that_is_interrupted_as_it_waits(recording: pig.Recording) -> None:
    def interrupted() -> Iterator[int]:
        raise KeyboardInterrupt
        yield 1

    with pytest.raises(KeyboardInterrupt):
        list(pig.gpu_steps(interrupted()))
    list(DataLoader(TensorDataset(torch.ones(4))))
    assert all_counts(recording.stop())["data"] == 5  # the interrupted one is one of them


def test_backward_pass_of_another_thread_within_one(recording: pig.Recording) -> None:
    """As a checkpointed module has on a device, whose part of the pass has a thread of its own."""

    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            thread = threading.Thread(
                target=lambda: torch.ones(1, requires_grad=True).sum().backward()
            )
            thread.start()
            thread.join()
            return gradient

    model = nn.Linear(4, 2)
    first, last = (torch.optim.SGD([p], lr=0.1) for p in (model.bias, model.weight))
    model.bias.register_post_accumulate_grad_hook(lambda _: first.step())
    model.weight.register_post_accumulate_grad_hook(lambda _: last.step())
    passed: Any = Elsewhere.apply
    for (x,) in DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8):
        passed(model(x)).sum().backward()
    run = recording.stop()
    assert run.step_totals.count == run.step_totals.complete == 3


def test_optimizer_that_failed_is_not_kept_alive() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise ArithmeticError

    optimizer = Failing([nn.Parameter(torch.ones(2))])
    with pig.record() as recording, pig.auto_phases(), contextlib.suppress(ArithmeticError):
        optimizer.step()
    reference = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert reference() is None
    assert all_counts(recording.run) == {"optimizer": 1}


def test_nothing_is_kept_alive(recording: pig.Recording) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=8)
    iterator = iter(loader)
    model(next(iterator)[0]).sum().backward()
    optimizer.step()
    kept = [weakref.ref(thing) for thing in (model, optimizer, loader, iterator)]
    del model, optimizer, loader, iterator
    gc.collect()
    assert not any(reference() for reference in kept)
    recording.stop()
