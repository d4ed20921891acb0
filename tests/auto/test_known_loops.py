# SPDX-License-Identifier: Apache-2.0
"""Training loops in real torch whose steps a reader can count: what is inside them, and outside."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import auto
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.report.document import document_of

BATCH = 4

PHASES = {
    "data start": "<",
    "data": "d",
    "data end": ">",
    "zero_grad": "z",
    "forward": "f",
    "eval": "e",
    "no_grad": "n",
    "loss": "l",
    "backward": "b",
    "optimizer": "o",
    "optimizer 2": "p",
    "optimizer 3": "q",
    "scheduler": "s",
    "checkpoint": "c",
    "log": "i",
}
"""A letter for each phase. Phases inside another one are left out."""


@dataclass(frozen=True)
class Known:
    """What a reader of a loop expects.

    Attributes:
        steps: the phases of each step in the order in which they begin. "!" ends one that was cut
            short.
        samples: in all steps together.
        outside: the number of calls of each phase outside of the steps.
        by_hand: whether there is no optimizer to be seen.
    """

    steps: list[str]
    samples: int = 0
    outside: Mapping[str, int] = field(default_factory=dict)
    by_hand: bool = False


LOOPS: dict[str, tuple[Callable[[], None], Known]] = {}


def known(
    steps: list[str],
    samples: int = 0,
    outside: Mapping[str, int] | None = None,
    by_hand: bool = False,
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(loop: Callable[[], None]) -> Callable[[], None]:
        LOOPS[loop.__name__] = loop, Known(steps, samples, outside or {}, by_hand)
        return loop

    return register


def network(inputs: int = 3, outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


def batches(count: int) -> DataLoader[tuple[Tensor, ...]]:
    inputs = torch.randn(BATCH * count, 3)
    return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=BATCH)


def one_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 3), torch.randint(0, 2, (BATCH,))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def descend(model: nn.Module) -> None:
    """An update by hand."""
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-0.1)


def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
    model.eval()
    for inputs, _ in loader:
        model(inputs)
    model.train()


# One loader


@known(["dzflbo"] * 6, 24, {"data start": 2, "data end": 2, "scheduler": 2})
def plain() -> None:
    model, loader = network(), batches(3)
    optimizer = sgd(model)
    scheduler = StepLR(optimizer, 1)
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        scheduler.step()


@known(["dflbosz"] * 3, 12, {"data start": 1, "data end": 1, "zero_grad": 1})
def gradients_cleared_last() -> None:
    model = network()
    optimizer = sgd(model)
    scheduler = OneCycleLR(optimizer, 0.1, total_steps=10)
    optimizer.zero_grad()
    for batch in batches(3):
        loss_of(model, batch).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


@known(["dflbdflbdflboz", "dflbdflbdflboz", "dflb>!"], 28, {"data start": 1, "zero_grad": 1})
def accumulation_with_a_rest() -> None:
    model = network()
    optimizer = sgd(model)
    optimizer.zero_grad()
    for i, batch in enumerate(batches(7), 1):
        loss_of(model, batch).backward()
        if i % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()


@known(["dddd" + "flb" * 4 + "oz"] * 2, 32, {"data start": 1})
def batches_fetched_before_the_first_forward() -> None:
    model, iterator = network(), iter(batches(9))
    optimizer = sgd(model)
    for _ in range(2):
        for batch in [next(iterator) for _ in range(4)]:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@known(
    [fetched + "flb" * 4 + "oz" for fetched in ("dddd", "dd><dd", "dddd")], 48, {"data start": 1}
)
def batches_fetched_across_epochs() -> None:
    def endless(loader: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from loader

    model, iterator = network(), endless(batches(6))
    optimizer = sgd(model)
    for _ in range(3):
        for batch in [next(iterator) for _ in range(4)]:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@known(["dddflbflboz", "d>flbflboz"] * 2, 32, {"data start": 2})
def hugging_face_trainer() -> None:
    def one_ahead(loader: DataLoader[Any]) -> Iterator[Any]:
        iterator = iter(loader)  # as Accelerate does, to tell which batch is the last one
        current = next(iterator)
        for following in iterator:
            yield current
            current = following
        yield current

    model, loader = network(), batches(4)
    optimizer = sgd(model)
    for _ in range(2):
        iterator = one_ahead(loader)
        for _ in range(2):
            for batch in [next(iterator) for _ in range(2)]:
                loss_of(model, batch).backward()
            optimizer.step()
            model.zero_grad()


@known(["ddzflbo", "dzflbo", "zflbo"], 12, {"data start": 1, "data end": 1})
def one_batch_ahead() -> None:
    model, iterator = network(), iter(batches(3))
    optimizer = sgd(model)
    following = next(iterator, None)
    while following is not None:
        batch, following = following, next(iterator, None)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


@known(["ddzflfbo"] * 2, 16, {"data start": 2, "data end": 1})
def two_loaders_side_by_side() -> None:
    model = network()
    optimizer = sgd(model)
    for batch, (unlabelled, _) in zip(batches(2), batches(3), strict=False):
        optimizer.zero_grad()
        (loss_of(model, batch) + model(unlabelled).std()).backward()
        optimizer.step()


@known(["dflboz"] * 4, 16, {"data start": 3, "data": 4, "eval": 4, "data end": 3})
def evaluation_in_the_middle_of_an_epoch() -> None:
    model, validation = network(), batches(2)
    optimizer = sgd(model)
    for i, batch in enumerate(batches(4)):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if i == 1:
            evaluate(model, validation)
        if i == 2:
            with torch.no_grad():
                evaluate(model, validation)


@known(["dflb<dede>dflb>oz"], 8, {"data start": 1})
def evaluation_in_the_middle_of_a_step() -> None:
    model, validation = network(), batches(2)
    optimizer = sgd(model)
    for i, batch in enumerate(batches(2)):
        loss_of(model, batch).backward()
        if i == 0:
            with torch.no_grad():
                evaluate(model, validation)
    optimizer.step()
    optimizer.zero_grad()


@known(["dzfbozfb", "o", *["zfbo"] * 18, *["zfbp"] * 20, *["zfbq"] * 20], 4, {"data start": 1})
def layers_trained_one_after_the_other() -> None:
    # With which update the first step ends is known only when the second one comes.
    layers = [nn.Linear(3, 3) for _ in range(3)]
    optimizers = [sgd(layer) for layer in layers]
    inputs = next(iter(batches(2)))[0]
    for layer, optimizer in zip(layers, optimizers, strict=True):
        for _ in range(20):
            optimizer.zero_grad()
            layer(inputs).pow(2).mean().backward()
            optimizer.step()


@known(
    ["dflbozflb", "oz", "flboz"] + ["dflboz", "flboz", "flboz"] * 3,
    16,
    {"data start": 1, "data end": 1},
)
def three_updates_for_each_batch() -> None:
    model = network()
    optimizer = sgd(model)
    for batch in batches(4):
        for _ in range(3):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


# Several optimizers


class Gan:
    def __init__(self) -> None:
        self.generator, self.discriminator = network(2, 3), network(3, 1)
        self.optimizer_d, self.optimizer_g = sgd(self.discriminator), sgd(self.generator)

    def train_discriminator(self, real: Tensor) -> None:
        self.optimizer_d.zero_grad()
        with torch.no_grad():
            fake = self.generator(torch.randn(BATCH, 2))
        (self.loss(real, 1.0) + self.loss(fake, 0.0)).backward()
        self.optimizer_d.step()

    def train_generator(self) -> None:
        self.optimizer_g.zero_grad()
        self.loss(self.generator(torch.randn(BATCH, 2)), 1.0).backward()
        self.optimizer_g.step()

    def loss(self, images: Tensor, label: float) -> Tensor:
        labels = torch.full((BATCH, 1), label)
        return functional.binary_cross_entropy_with_logits(self.discriminator(images), labels)


@known(["dznflflbozfflbp"] * 3, 12, {"data start": 1, "data end": 1})
def gan() -> None:
    networks = Gan()
    for real, _ in batches(3):
        networks.train_discriminator(real)
        networks.train_generator()


@known(["znflflbozfflbp"] * 3)
def gan_without_a_loader() -> None:
    networks = Gan()
    for _ in range(3):
        networks.train_discriminator(one_batch()[0])
        networks.train_generator()


@known([*["dznflflbo"] * 10, "dznflflbozfflbp"] * 2, 88, {"data start": 1, "data end": 1})
def generator_trained_with_every_eleventh_batch() -> None:
    networks = Gan()
    for i, (real, _) in enumerate(batches(22), 1):
        networks.train_discriminator(real)
        if i % 11 == 0:
            networks.train_generator()


def delayed_policy(
    start: int, part: Callable[[Callable[[], None]], None] = lambda it: it()
) -> None:
    """As SAC and TD3 do: a critic is updated in every iteration, the policy in every second one."""
    actor, critic, target = network(3, 3), network(3, 3), network(3, 3)
    critic_optimizer, policy_optimizer = sgd(critic), sgd(actor)

    def update_critic() -> None:
        actor(torch.randn(1, 3))  # the rollout
        x = torch.randn(BATCH, 3)
        with torch.no_grad():
            y = target(actor(x))
        loss = functional.mse_loss(critic(x), y)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()

    def update_policy() -> None:
        with torch.no_grad():
            target(torch.randn(BATCH, 3))
        loss = -critic(actor(torch.randn(BATCH, 3))).mean()
        policy_optimizer.zero_grad()
        loss.backward()
        policy_optimizer.step()

    for iteration in range(start, start + 7):
        part(update_critic)
        if iteration % 2 == 0:
            part(update_policy)


CRITIC, POLICY = "fnnflzbo", "nffzbp"


# As one of two optimizers may be the first half of each step, the loop shows only where the first
# one steps again that it does so alone.
@known([CRITIC + "fnnflzb", "o" + POLICY, *[CRITIC, CRITIC + POLICY] * 2, CRITIC])
def policy_updated_from_the_second_iteration_on() -> None:
    delayed_policy(1)


@known([CRITIC + POLICY, CRITIC + "fnnflzb", "o" + POLICY, *[CRITIC, CRITIC + POLICY] * 2])
def policy_updated_from_the_first_iteration_on() -> None:
    delayed_policy(0)


@known([CRITIC + POLICY, CRITIC + "fnnflzb", "o" + POLICY, *[CRITIC, CRITIC + POLICY] * 2])
def policy_updated_in_functions_of_functions() -> None:
    def once(update: Callable[[], None]) -> None:
        for _ in range(1):
            update()

    delayed_policy(0, once)


@known(["zflbozflb", "o", *["zflbo"] * 2, *["zflbp"] * 4])
def two_trainings_one_after_the_other() -> None:
    model = network()
    optimizers = sgd(model), torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizers[0].zero_grad()
        loss_of(model, one_batch()).backward()
        optimizers[0].step()
    for _ in range(4):
        optimizers[1].zero_grad()
        loss_of(model, one_batch()).backward()
        optimizers[1].step()


@known(["zflbofeezflb", "of", "zflbof", "zflbo"], outside={"eval": 6, "forward": 1})
def second_optimizer_that_never_steps() -> None:
    model = network()
    optimizer, other = sgd(model), sgd(model)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model, one_batch()).backward()
        optimizer.step()
        model(torch.randn(BATCH, 3))  # to log something
        model.eval()
        for _ in range(2):
            model(torch.randn(BATCH, 3))
        model.train()
    del other


def residual(net: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = net(x)
    return y + torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


@known(["o"] * 5 + ["p"], outside={"eval": 1, "forward": 1, "backward": 2})
def equation_solved_with_one_optimizer_after_another() -> None:
    """Whose residual is looked at before, and after the end."""
    net, x = network(1, 1), torch.linspace(0, 1, 8).reshape(-1, 1).requires_grad_()

    def closure() -> Any:
        optimizer.zero_grad()
        loss = residual(net, x).pow(2).mean()
        loss.backward()
        return loss

    adam = torch.optim.Adam(net.parameters(), 1e-3)
    optimizer: torch.optim.Optimizer = adam
    for _ in range(5):
        optimizer.step(closure)
    net.eval()
    residual(net, x)
    net.train()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    optimizer.step(closure)
    residual(net, x)


@known(["dfblbo"] * 2, 8, {"data start": 2, "data": 2, "eval": 2, "backward": 2, "data end": 2})
def forces_that_are_tested_by_derivatives() -> None:
    model, loader = network(3, 1), batches(2)
    optimizer = sgd(model)

    def forces(inputs: Tensor) -> Tensor:
        inputs.requires_grad_()
        energy: Tensor = model(inputs).sum()
        return torch.autograd.grad(energy, inputs, create_graph=True)[0]

    for inputs, _ in loader:
        functional.mse_loss(forces(inputs), torch.zeros(BATCH, 3)).backward()
        optimizer.step()
    model.eval()
    for inputs, _ in loader:
        forces(inputs)


# No loader


@known(["zflbo"] * 4, 0, {"no_grad": 2})
def no_loader() -> None:
    model = network()
    optimizer = sgd(model)
    inputs, labels = torch.randn(4, BATCH, 3), torch.randint(0, 2, (4, BATCH))
    for i in range(4):
        optimizer.zero_grad()
        loss_of(model, (inputs[i], labels[i])).backward()
        optimizer.step()
        if i % 2:
            with torch.no_grad():
                model(inputs[i])


@known(["flbosz"] * 3)
def no_loader_and_gradients_cleared_last() -> None:
    model = network()
    optimizer = sgd(model)
    scheduler = StepLR(optimizer, 1)
    for _ in range(3):
        loss_of(model, one_batch()).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


@known(["o"] * 5)
def closure() -> None:
    model, batch = network(), one_batch()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)


@known(["flb"] * 3)
def optimizers_that_step_within_the_backward_pass() -> None:
    model = network()
    optimizers = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(
            lambda _, optimizer=optimizer: optimizer.step()
        )
    for _ in range(3):
        loss_of(model, one_batch()).backward()


@known(["zflbo"] * 3, 0, {"checkpoint": 1, "plot": 1, "forward": 2})
def saved_and_used_after_the_loop() -> None:
    model = network()
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, one_batch()).backward()
        optimizer.step()
    torch.save(model.state_dict(), io.BytesIO())
    with pig.gpu_phase("plot"):
        pass
    for _ in range(2):
        model(one_batch()[0])


@known(["zflboi", "zflboi", "zflbo"], 0, {"plot": 1, "eval": 3})
def evaluated_after_each_step_and_plotted_before_the_last_time() -> None:
    # What is done between an update and an evaluation belongs to the step if the loop goes on.
    model = network()
    optimizer = sgd(model)
    for i in range(3):
        model.train()
        optimizer.zero_grad()
        loss_of(model, one_batch()).backward()
        optimizer.step()
        with pig.gpu_phase("log" if i < 2 else "plot"):
            pass
        model.eval()
        model(one_batch()[0])


# No optimizer


@known(["zflb"] * 3, by_hand=True)
def update_by_hand() -> None:
    model = network()
    for _ in range(3):
        model.zero_grad()
        loss_of(model, one_batch()).backward()
        descend(model)


@known(["dflbz"] * 3, 12, {"data start": 1, "data end": 1}, by_hand=True)
def update_by_hand_with_a_loader() -> None:
    model = network()
    for batch in batches(3):
        loss_of(model, batch).backward()
        descend(model)
        model.zero_grad()


@known(["dflbzfl", "bz", "flbz", "flbz"], 4, {"data start": 1}, by_hand=True)
def updates_by_hand_with_one_batch() -> None:
    model, batch = network(), next(iter(batches(1)))
    for _ in range(4):
        loss_of(model, batch).backward()
        descend(model)
        model.zero_grad()


def written(run: Run) -> list[str]:
    """The steps of a run as they are written in `Known`."""
    letters: dict[int, str] = defaultdict(str)
    order = run.spans["host_begin_ns"].argsort(kind="stable")
    for span in run.spans[order]:
        path = run.paths[span["path"]]
        if span["step"] >= 0 and "/" not in path:
            letters[int(span["step"])] += PHASES[path]
    return [letters[step.index] + "!" * (not step.complete) for step in run.steps]


def assert_rows_add_up(run: Run) -> None:
    """The outermost phases and what is outside phases are the step."""
    document = document_of(run)
    steps = document.steps
    assert steps is not None and steps.outside_phases_ns is not None
    rows_ns = sum(one.host_ns or 0.0 for one in document.phases if "/" not in one.path)
    assert steps.outside_phases_ns >= 0
    # Where each span begins and how long it takes are whole nanoseconds.
    rounded_ns = 2 * (1 + len(run.spans) / steps.count)
    sum_ns = rows_ns + steps.outside_phases_ns / steps.count
    assert sum_ns == pytest.approx(steps.mean_ns, rel=0, abs=rounded_ns)


@pytest.mark.parametrize("loop", LOOPS)
def test_known_loop(loop: str) -> None:
    train, expected = LOOPS[loop]
    torch.manual_seed(0)
    phases = auto.AutoPhases()
    with pig.record() as recording:
        phases.install()
        try:
            train()
        finally:
            phases.remove()
    run = recording.run
    assert phases.error is None
    assert written(run) == expected.steps
    assert run.step_totals.samples == expected.samples
    outside = {path: phase.count for path, phase in run.phases_in(Scope.OUTSIDE).items()}
    assert outside == expected.outside
    assert phases.optimizer_seen is (not expected.by_hand)
    assert_rows_add_up(run)


@pytest.mark.parametrize("loop", ["no_loader_and_gradients_cleared_last", "gradients_cleared_last"])
def test_last_step_ends_with_the_work_of_its_loop(loop: str) -> None:
    with pig.record() as recording, pig.auto_phases():
        LOOPS[loop][0]()
    run = recording.run
    last = run.spans["host_end_ns"][run.spans["step"] == len(run.steps) - 1].max()
    assert last <= run.steps[-1].end_ns
