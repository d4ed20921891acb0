# SPDX-License-Identifier: Apache-2.0
"""Memory by kind around a backward pass, of real models on the CPU, against what torch's own hooks
of saved tensors see."""

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps
from pyinstrument_gpu.aspects.memory import looks, saved_tensors
from pyinstrument_gpu.aspects.memory.aspect import ASPECT
from pyinstrument_gpu.aspects.memory.data import StepMemory
from tests.aspects.memory.test_memory import memory_of
from tests.helpers.allocator import SimulatedDevice

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = nn.functional
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint


class Case(NamedTuple):
    """A model and its input."""

    model: Any
    batch: Any


class Block(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, width: int, how: str = "") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.how = how

    def inner(self, x: Any) -> Any:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)

    def forward(self, x: Any) -> Any:
        if self.how:
            return checkpoint(self.inner, x, use_reentrant=self.how == "reentrant")
        return self.inner(x)


class Transformer(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16, how) for _ in range(3))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, None)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient


class WithFunction(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return Doubled.apply(self.linear(x)).exp()


def mlp() -> Case:
    layers = nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 8), nn.ReLU(inplace=True)
    return Case(nn.Sequential(*layers), torch.randn(4, 8))


def convolutions() -> Case:
    layers = [
        layer
        for _ in range(2)
        for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
    ]
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 10))
    return Case(model, torch.randn(2, 3, 8, 8))


CASES: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "convolutions": convolutions,
    "transformer": lambda: Case(Transformer(), torch.randint(0, 50, (2, 7))),
    "lstm": lambda: Case(nn.LSTM(4, 5, num_layers=2), torch.randn(6, 2, 4)),
    "function": lambda: Case(WithFunction(), torch.randn(3, 8)),
    "reentrant": lambda: Case(Transformer("reentrant"), torch.randint(0, 50, (2, 7))),
    "not reentrant": lambda: Case(Transformer("plain"), torch.randint(0, 50, (2, 7))),
}


def loss_of(case: Case) -> Any:
    made = case.model(case.batch)
    return (made[0] if isinstance(made, tuple) else made).pow(2).mean()


def bytes_of(tensors: Any) -> int:
    """Of their storages."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def oracle(case: Case) -> tuple[int, dict[str, int]]:
    """What a forward pass saves beside parameters, buffers and its input, as torch's hooks are
    given it; and by module, to which belongs what it is the first to save."""
    names = {module: name or type(module).__name__ for name, module in case.model.named_modules()}
    known = {
        one.untyped_storage().data_ptr()
        for one in (*case.model.parameters(), *case.model.buffers(), case.batch)
    }
    stack: list[str] = []
    saved: dict[int, tuple[str | None, int]] = {}
    kept = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor.detach())  # so that no address is given twice
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            owner = stack[-1] if stack else None
            saved.setdefault(storage.data_ptr(), (owner, storage.nbytes()))
        return tensor

    def enter(module: Any, _: Any) -> None:
        stack.append(names[module])

    def leave(module: Any, *_: Any) -> None:
        stack.pop()

    hooks = [each.register_forward_pre_hook(enter) for each in names]
    hooks += [each.register_forward_hook(leave) for each in names]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(case)
    for hook in hooks:
        hook.remove()
    by_module: Counter[str] = Counter()
    for owner, held in saved.values():
        if owner is not None:
            by_module[owner] += held
    del loss
    return sum(held for _, held in saved.values()), dict(by_module)


def train(case: Case, optimizer: Any, steps: int = 3) -> StepMemory:
    with pig.record() as recording:
        for _ in gpu_steps(range(steps)):
            with gpu_phase("forward"):
                loss = loss_of(case)
            with gpu_phase("backward"):
                loss.backward()
            with gpu_phase("update"):
                optimizer.step()
                optimizer.zero_grad()
    found = memory_of(recording).held
    assert found is not None
    return found


@pytest.fixture
def all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinstrument_gpu.aspects.memory.holders.MOST_MODULES", 1000)


@pytest.mark.usefixtures("all_modules")
@pytest.mark.parametrize("name", CASES)
def test_saved_tensors_are_known_to_the_byte(name: str) -> None:
    case = CASES[name]()
    expected, by_module = oracle(case)
    blocks = [f"blocks.{number}" for number in range(3)]
    if name == "reentrant":  # keeps the states of random numbers beside what it saves
        for block in blocks:
            by_module[block] += torch.get_rng_state().nbytes
            expected += torch.get_rng_state().nbytes
    if name == "not reentrant":  # nobody can tell where it was called: it is where it first matters
        by_module |= {f"{block}.norm": by_module.pop(block) for block in blocks}
    found = train(case, torch.optim.SGD(case.model.parameters(), lr=0.01))
    assert expected
    assert found.begin.activations_bytes == expected
    assert {one.name: one.bytes for one in found.activation_modules} == by_module
    assert found.begin.inputs_bytes == bytes_of([case.batch])
    assert (found.unseen, found.step) == (0, 1)
    assert [one.path for one in found.phases] == ["forward"]
    assert found.phases[0].bytes == expected


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters),
    "foreach": lambda parameters: torch.optim.Adam(parameters, amsgrad=True, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_gradients_and_optimizer_state_are_known_to_the_byte(name: str) -> None:
    case = convolutions()
    optimizer = OPTIMIZERS[name](case.model.parameters())
    found = train(case, optimizer)
    state = [
        each
        for of_parameter in optimizer.state.values()
        for each in of_parameter.values()
        if isinstance(each, torch.Tensor)
    ]
    parameters = bytes_of(case.model.parameters())
    assert found.end is not None
    for moment, gradients in ((found.begin, 0), (found.end, parameters)):
        assert moment.parameters_bytes == parameters
        assert moment.gradients_bytes == gradients
        assert moment.buffers_bytes == bytes_of(case.model.buffers())
        assert moment.optimizer_state_bytes == bytes_of(state)
    assert (found.end.activations_bytes, found.optimizers) == (0, 1)


def test_a_program_without_modules_and_phases() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pig.record() as recording:
        for _ in gpu_steps(range(2)):
            outside = weight.neg().exp()
            with gpu_phase("outer"), gpu_phase("inner"):
                inside = torch.cat([outside, outside]).tanh()
            inside.sum().backward()
            optimizer.step()
    found = memory_of(recording).held
    assert found is not None
    assert found.begin.parameters_bytes == found.begin.gradients_bytes == 64
    assert found.begin.activations_bytes == 64 + 128
    assert found.activation_modules == ()
    assert [(one.path, one.bytes) for one in found.phases] == [("outer/inner", 128), (None, 64)]


def test_the_backward_pass_with_most_counts_and_each_gradient_that_is_there() -> None:
    case = mlp()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    with pig.record() as recording:
        for _ in gpu_steps(range(2)):
            loss_of(case).backward()
            loss_of(case).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = memory_of(recording).held
    assert found is not None
    assert found.begin.gradients_bytes == bytes_of(case.model.parameters())
    assert found.begin.activations_bytes == oracle(case)[0]


def test_what_does_not_show_what_it_holds_is_counted() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)

    class Packed(NamedTuple):
        name: str

    kept: dict[str, Any] = {}

    def pack(tensor: Any) -> Packed:
        kept[str(len(kept))] = tensor
        return Packed(str(len(kept) - 1))

    with pig.record() as recording:
        for _ in gpu_steps(range(2)):
            kept.clear()
            y = x * 1
            y[0].exp_()  # in place on a view: a node around others that are not seen
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: kept[one.name]):
                z = y.exp()
            z.sum().backward()
            optimizer.step()
    found = memory_of(recording).held
    assert found is not None
    assert found.unseen == 2
    assert "may be larger: 2 nodes of autograd" in report(recording)


def test_offloaded_tensors_are_those_that_the_hook_has_made() -> None:
    case = mlp()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    unpacked: list[Any] = []

    def pack(tensor: Any) -> Any:
        return "offloaded", tensor.clone()

    def unpack(packed: Any) -> Any:
        unpacked.append(packed)
        return packed[1]

    with pig.record() as recording:
        for _ in gpu_steps(range(2)):
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                loss = loss_of(case)
            seen = len(unpacked)
            loss.backward()
            optimizer.step()
    found = memory_of(recording).held
    assert found is not None
    assert found.unseen == 0
    # Copies, also of weights and of the batch, and of what is saved twice.
    assert found.begin.activations_bytes > oracle(case)[0]
    assert seen == len(unpacked) / 2  # nothing was unpacked but by the two backward passes


def test_nothing_is_kept_alive() -> None:
    case = mlp()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    gc.disable()
    try:
        with pig.record():
            for _ in gpu_steps(range(2)):
                hidden = case.model[0](case.batch.clone())
                reference = weakref.ref(hidden)
                loss = case.model[1:](hidden).sum()
                loss.backward()
                optimizer.step()
                del hidden, loss
                assert reference() is None
    finally:
        gc.enable()


def test_hooks_are_there_in_one_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = []
    mark = looks._Step.mark

    def marks(step: Any, name: str | None) -> None:
        marked.append(name)
        mark(step, name)

    monkeypatch.setattr(looks._Step, "mark", marks)
    case = mlp()
    train(case, torch.optim.SGD(case.model.parameters(), lr=0.1), steps=5)
    assert marked == ["Sequential", "0", "1", "2", "3", "4"]


def test_another_step_is_looked_at_once_the_peak_has_grown() -> None:
    device = SimulatedDevice()
    case = mlp()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    with pig.record() as recording:
        watch: Any = recording.watchers["memory"]
        watch._find = lambda: device
        for step in gpu_steps(range(12)):
            batch = case.batch if step < 4 else case.batch.repeat(3, 1)
            device.allocator.allocate(1000 * len(batch))
            case.model(batch).sum().backward()
            device.allocator.free(1000 * len(batch))
            optimizer.step()
            watch._looks.note_peak(device.allocator.peak)
    found = memory_of(recording).held
    assert found is not None
    # The peak is seen in step 4, an optimizer in step 5.
    assert found.step == 6
    assert found.begin.inputs_bytes == bytes_of([case.batch]) * 3
    assert found.begin.allocated_bytes == 12_000


@pytest.mark.parametrize("where", ["begin", "module"])
def test_an_error_of_ours_is_none_of_the_programs(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("ours")

    if where == "begin":
        monkeypatch.setattr(saved_tensors.SavedTensors, "walk", fail)
    else:
        monkeypatch.setattr(looks._Step, "model_is_called", fail)
    case = mlp()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    with pig.record() as recording:
        for _ in gpu_steps(range(3)):
            loss_of(case).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = memory_of(recording).held
    if where == "begin":
        assert found is None
        assert [*ASPECT.unknown(recording.run)] == [
            "Memory by kind: no backward pass was inspected."
        ]
    else:
        assert found is not None
        assert found.begin.parameters_bytes == bytes_of(case.model.parameters())


def test_a_backward_pass_that_fails_has_no_end() -> None:
    x = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    with pig.record() as recording:
        for step in gpu_steps(range(2)):
            y = x.exp()
            if step == 1:
                y.register_hook(lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError) if step == 1 else contextlib.nullcontext():
                y.sum().backward()
            optimizer.step()
    found = memory_of(recording).held
    assert found is not None
    assert (found.end, found.begin.activations_bytes) == (None, 12)


def test_a_program_without_an_optimizer_is_looked_at_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "MOST_STEPS", 5)
    x = torch.randn(3, requires_grad=True)
    with pig.record() as recording:
        for _ in gpu_steps(range(6)):
            x.exp().sum().backward()
    found = memory_of(recording).held
    assert found is not None
    assert (found.step, found.optimizers) == (3, 0)
    assert "Optimizer state is unknown" in report(recording)


def report(recording: pig.Recording, verbose: bool = True) -> str:
    return " ".join(recording.run.report(verbose=verbose, width=500).split())


def test_what_the_report_says_of_a_device() -> None:
    device = SimulatedDevice()
    x = torch.randn(100, requires_grad=True)  # 400 bytes
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=0.9)
    with pig.record() as recording:
        watch: Any = recording.watchers["memory"]
        watch._find = lambda: device
        for _ in gpu_steps(range(3)):
            device.allocator.allocate(2500)
            with gpu_phase("forward"):
                loss = x.exp().tanh().sum()
            loss.backward()
            device.allocator.free(1000)
            optimizer.step()
            optimizer.zero_grad()
            device.allocator.free(1500)
    text = report(recording)
    assert "Memory by kind around the backward pass of step 1, inspected in" in text
    assert "activations 800 bytes 0 bytes" in text
    assert "workspace and others 900 bytes 1.27 KiB" in text
    assert "Activations, by phase: forward 800 bytes" in text
    assert (
        "Memory on GPU 0: peak 2.44 KiB, of which activations 32.0%, parameters 16.0%, optimizer "
        "state 16.0%, others 36.0% as the backward pass of step 1 began"
    ) in report(recording, verbose=False)
