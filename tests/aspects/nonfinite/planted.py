# SPDX-License-Identifier: Apache-2.0
"""Programs with a value that is not finite, planted in a place that is known."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pyinstrument_gpu as pig

STEPS, AT = 4, 2
Make = Callable[[Tensor], Tensor]
Step = tuple[Tensor, Tensor]


class Planted(nn.Module):
    """Does something in step `AT`, and passes on what it gets in others."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.make, self.calls = make, 0

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._current_graph_task_id() == -1:  # not where it is computed again
            self.calls += 1
        return self.make(x) if self.calls == AT + 1 else x


class Attention(nn.Module):
    """Attention of one head, in which the rows of a batch look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(len(x), len(x))
        mask[0, int(self.calls != AT) :] = -math.inf  # the whole row: softmax of nothing
        self.calls += 1
        scores = self.q(x) @ self.k(x).T + mask
        return self.out(scores.softmax(-1) @ self.v(x))  # type: ignore[no-any-return]


class TorchAttention(nn.Module):
    """torch's own attention, in which one sequence may have no key that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.calls = nn.MultiheadAttention(4, 2, batch_first=True), 0

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(len(x), 1, dtype=torch.bool)
        padding[0] = self.calls == AT
        self.calls += 1
        x = x[:, None]
        return self.heads(x, x, x, key_padding_mask=padding)[0][:, 0]  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    """A block whose values are computed again in the backward pass."""

    def __init__(self, make: Make, use_reentrant: bool) -> None:
        super().__init__()
        self.block, self.use_reentrant = Planted(make), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=self.use_reentrant)  # type: ignore[no-any-return]


class Between(nn.Module):
    """Code of its own between the modules in it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Planted(torch.zeros_like), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.after(x / x.norm())  # type: ignore[no-any-return]


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient / 0


def net(*planted: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *planted, nn.Linear(4, 1))


def data(x_is: float = 0.0, y_is: float = 0.0) -> Iterator[Step]:
    """Batches; in step 1 one number of each is another."""
    torch.manual_seed(1)
    for step in range(STEPS):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        if step == 1:
            x[3, 1], y[2] = x_is, y_is
        yield x, y


def mean_square(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean()


def large(out: Tensor, y: Tensor) -> Tensor:
    return 1e6 * mean_square(out, y)


def log_in_code(out: Tensor, y: Tensor) -> Tensor:
    return mean_square(out, y) + (out - out).sum().log()


def trained(
    model: nn.Module,
    batches: Iterator[Step],
    loss_of: Callable[[Tensor, Tensor], Tensor] = mean_square,
    lr: float = 0.01,
    scale: float | None = None,
    clip: bool = False,
    checks_loss: bool = False,
) -> nn.Module:
    """A loop as programs have it."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    for x, y in pig.gpu_steps(batches):
        loss = loss_of(model(x), y)
        if checks_loss and not loss.isfinite():
            break
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model


class Case(NamedTuple):
    """A program, and where its first value that is not finite is: step, pass, module, detail."""

    program: Callable[[], nn.Module]
    truth: tuple[int, str, str, str] | None


def of(
    module: Callable[[], nn.Module], where: str, name: str, detail: str = "", **how: Any
) -> Case:
    """A program whose module `1` is made so."""
    return Case(lambda: trained(net(module()), data(), **how), (AT, where, name, detail))


def forward(make: Make, **how: Any) -> Case:
    return of(partial(Planted, make), "forward", "1", **how)


def backward(make: Make, node: str, **how: Any) -> Case:
    return of(partial(Planted, make), "backward", "1", node, **how)


def embedded() -> nn.Module:
    embedding = nn.Embedding(8, 4)
    with torch.no_grad():
        embedding.weight[2] = math.nan
    batches = ((torch.arange(8), torch.ones(8, 1)) for _ in range(STEPS))
    return trained(nn.Sequential(embedding, nn.Linear(4, 1)), batches)


def standardised(x: Tensor) -> Tensor:
    """As BatchNorm does it without an epsilon, by the spread of the first sample alone."""
    one = x[:1]
    return (x - one.mean(0)) / ((one - one.mean(0)).square().sum(0) / (len(one) - 1)).sqrt()


def root(x: Tensor) -> Tensor:
    return (x - x).abs().sqrt() + x


def log(x: Tensor) -> Tensor:
    """Without its gradient all is well: none of the logarithms is used."""
    return torch.where(x > 99, (x - x).log(), x)


CASES = {
    "division by zero": forward(lambda x: x / (x - x)),
    "log of 0": forward(lambda x: x.relu().log()),
    "float16 overflows": forward(lambda x: (x.half() * 6e4 * 6e4).float()),
    "bfloat16 overflows": forward(lambda x: (x.bfloat16() * 3e38 * 3e38).float()),
    "exp overflows": forward(lambda x: (x * 1e4).exp()),
    "softmax of nothing": of(Attention, "forward", "1", "1.out"),
    "torch's attention to nothing": of(TorchAttention, "forward", "1.heads"),
    "root at 0, backward": backward(root, "SqrtBackward0"),
    "where of a log, backward": backward(log, "LogBackward0"),
    "own backward": backward(BadBackward.apply, "BadBackwardBackward"),
    "clipped": backward(log, "LogBackward0", clip=True),
    "spread of one sample": forward(standardised),
    "LayerNorm of a constant": of(
        lambda: nn.Sequential(Planted(torch.ones_like), nn.LayerNorm(4, eps=0)), "forward", "1.1"
    ),
    "between modules": of(Between, "forward", "1", "1.after"),
    "computed again": of(lambda: Checkpointed(root, False), "backward", "1.block", "SqrtBackward0"),
    "computed again, reentrant": of(
        lambda: Checkpointed(root, True), "backward", "1.block", "SqrtBackward0"
    ),
    "learning rate": Case(lambda: trained(net(), data(), lr=1e25), (1, "forward", "1", "")),
    "update": Case(
        lambda: trained(net(), data(), large, lr=1e37),
        (1, "weights", "0", "weight"),
    ),
    "weights": Case(embedded, (0, "weights", "0", "weight")),
    "input": Case(lambda: trained(net(), data(math.nan)), (1, "input", "Sequential", "")),
    "target": Case(
        lambda: trained(net(), data(0.0, math.inf), nn.MSELoss()), (1, "input", "MSELoss", "")
    ),
    "loss in code": Case(lambda: trained(net(), data(), log_in_code), (0, "forward", "", "")),
    "never goes backward": forward(lambda x: x / (x - x), checks_loss=True),
    "scaled": forward(lambda x: x / (x - x), scale=2.0),
    "scaled, backward": backward(log, "LogBackward0", scale=2.0),
    "scale too large": Case(lambda: trained(net(), data(), large, scale=2.0**127), None),
    "infinite, and no harm": Case(
        lambda: trained(net(Planted(lambda x: x.detach() / 0), nn.Sigmoid()), data()), None
    ),
    "well": Case(lambda: trained(net(nn.Dropout(), nn.LayerNorm(4)), data()), None),
}
