# SPDX-License-Identifier: Apache-2.0
"""Modules that run without being trained: which of them are an evaluation, and which a rollout, a
target network or a teacher, without which there would be no training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.analysis.rules import findings
from pyinstrument_gpu.core.run import Run

SHAPES: dict[str, tuple[Callable[[], None], str, frozenset[str]]] = {}
"""A program, what can be said of its evaluations, and its phases without gradients."""


def shape(says: str, *phases: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(program: Callable[[], None]) -> Callable[[], None]:
        SHAPES[program.__name__] = program, says, frozenset(phases)
        return program

    return register


def network(inputs: int = 3, outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([parameter for model in models for parameter in model.parameters()])


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def labelled() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3), torch.randint(0, 2, (4,))


def batches() -> DataLoader[tuple[Tensor, ...]]:
    inputs = torch.randn(32, 3)
    return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=4)


# What training needs


def ppo(model: nn.Module, before: Callable[[], object], after: Callable[[], object]) -> None:
    optimizer = adam(model)
    for _ in range(3):
        before()
        with torch.no_grad():
            observed = [torch.randn(4, 3) for _ in range(6)]
            for one in observed:
                model(one)
        after()
        for _ in range(2):
            for batch in torch.cat(observed).chunk(4):
                update(optimizer, functional.mse_loss(model(batch), torch.randn(len(batch), 2)))


@shape("unknown", "no_grad")
def ppo_in_training_mode() -> None:
    model = network()
    ppo(model, model.train, model.train)


@shape("unknown", "eval")
def ppo_in_eval_mode() -> None:
    model = network()
    ppo(model, model.eval, model.train)


@shape("nothing", "eval")
def a2c() -> None:
    model = network()
    optimizer = adam(model)
    for _ in range(8):
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(4, 3))
        model.train()
        update(optimizer, functional.mse_loss(model(torch.randn(20, 3)), torch.randn(20, 2)))


@shape("nothing", "no_grad", "eval")
def dqn() -> None:
    model, target = network(), network().eval()
    optimizer = adam(model)
    for _ in range(8):
        with torch.no_grad():
            model(torch.randn(1, 3))
            wanted = target(torch.randn(8, 3)).max(1).values
        update(optimizer, functional.smooth_l1_loss(model(torch.randn(8, 3)).max(1).values, wanted))


@shape("nothing", "no_grad")
def td3() -> None:
    actor, critic, old_critic = network(), network(), network()
    of_actor, of_critic = adam(actor), adam(critic)
    for i in range(12):
        with torch.no_grad():
            actor(torch.randn(1, 3))
            wanted = old_critic(torch.randn(8, 3))
        update(of_critic, functional.mse_loss(critic(torch.randn(8, 3)), wanted))
        if i % 2:
            update(of_actor, -actor(torch.randn(8, 3)).mean())


@shape("nothing", "eval")
def distillation() -> None:
    student, teacher = network(), network().eval()
    optimizer = adam(student)
    for inputs, _ in batches():
        with torch.no_grad():
            wanted = teacher(inputs).softmax(1)
        update(optimizer, functional.cross_entropy(student(inputs), wanted))


@shape("nothing", "no_grad")
def mean_teacher() -> None:
    student = network()
    teacher = copy.deepcopy(student)
    optimizer = adam(student)
    for inputs, _ in batches():
        with torch.no_grad():
            wanted = teacher(inputs)
        update(optimizer, functional.mse_loss(student(inputs), wanted))


@shape("nothing", "no_grad")
def gan_with_detached_images() -> None:
    generator, critic = network(), network(2, 1)
    of_generator, of_critic = adam(generator), adam(critic)
    for real, _ in batches():
        with torch.no_grad():
            made = generator(real)
        update(of_critic, critic(made).mean())
        update(of_generator, -critic(generator(real)).mean())


# What is there to look at


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(inputs), labels)


@shape("worth", "eval", "eval/loss")
def estimated_loss_inside_the_model() -> None:
    model = LanguageModel()
    optimizer = adam(model)
    for i in range(12):
        if i % 4 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(*labelled()).item()
            model.train()
        update(optimizer, model(*labelled()))


@shape("worth", "eval")
def loss_every_third_step_without_a_loader() -> None:
    model = network()
    optimizer = adam(model)
    for i in range(12):
        inputs, labels = labelled()
        update(optimizer, functional.cross_entropy(model(inputs), labels))
        if i % 3 == 2:
            model.eval()
            with torch.no_grad():
                functional.cross_entropy(model(inputs), labels)
            model.train()


@shape("worth", "eval")
def accuracy_after_each_epoch() -> None:
    model = network()
    optimizer = adam(model)
    for _ in range(2):
        for inputs, labels in batches():
            update(optimizer, functional.cross_entropy(model(inputs), labels))
        model.eval()
        with torch.no_grad():
            for inputs, labels in batches():
                (model(inputs).argmax(1) == labels).sum()
        model.train()


@shape("worth", "eval")
def accuracy_with_gradients_left_on() -> None:
    model = network()
    optimizer = adam(model)
    for _ in range(3):
        model.train()
        for inputs, labels in batches():
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        model.eval()
        for inputs, labels in batches():
            (model(inputs).argmax(1) == labels).sum()


def recorded_run(program: Callable[[], None]) -> Run:
    phases = auto.AutoPhases()
    with pig.record() as recording:
        phases.install()
        try:
            program()
        finally:
            phases.remove()
    run = recording.run
    run.environment.update(phases.facts())  # as under `run`
    return run


@pytest.fixture(params=SHAPES)
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[Run, str, frozenset[str]]]:
    program, says, names = SHAPES[request.param]
    yield recorded_run(program), says, names


def test_only_evaluations_are_advised_to_come_less_often(
    recorded: tuple[Run, str, frozenset[str]],
) -> None:
    run, says, names = recorded
    advice = [one for one in findings(run) if "half as often" in one.about]
    assert [one.about for one in advice] == ["evaluate half as often"] * (says != "nothing")
    assert [one.high_share is not None for one in advice] == [says == "worth"] * len(advice)
    found = {path for path in run.phases if path.split("/")[0] in ("eval", "no_grad")}
    assert found == names
    assert ("evaluate" in run.report(verbose=True).split("\n\n")[0]) <= (says == "worth")


def test_a_model_that_is_trained_in_eval_mode_runs_forward() -> None:
    frozen, head = network().eval(), network(2).eval()
    teacher = network().eval()
    optimizer = adam(frozen, head)

    def program() -> None:
        for i in range(12):
            inputs, labels = labelled()
            wanted = teacher(inputs).detach()  # with gradients, which nobody asks for
            loss = functional.cross_entropy(head(frozen(inputs)), labels)
            update(optimizer, loss + functional.mse_loss(frozen(inputs), wanted))
            if i % 4 == 3:
                with torch.no_grad():
                    head(frozen(inputs))

    run = recorded_run(program)
    # In the first step, nobody can know.
    assert {path: phase.count for path, phase in run.phases.items() if path == "forward"} == {
        "forward": 3 * 11
    }
    assert run.phases["eval"].count == 12 + 3 + 3 * 2
    assert run.step_totals.count == 12
    assert not [one for one in findings(run) if one.high_share is not None]


def test_that_a_model_is_trained_in_eval_mode_is_asked_a_few_times() -> None:
    asked = 0

    class Asked(nn.Linear):
        def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
            nonlocal asked
            asked += 1
            return super().parameters(recurse)

    teacher, student = Asked(3, 2).eval(), network()
    optimizer = adam(student)

    def program() -> None:
        for _ in range(20):
            inputs, _ = labelled()
            update(optimizer, functional.mse_loss(student(inputs), teacher(inputs).detach()))

    run = recorded_run(program)
    assert run.phases["eval"].count == 20
    assert asked == 8
