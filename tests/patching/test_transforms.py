# SPDX-License-Identifier: Apache-2.0
"""What torch makes of functions and modules under the hooks: scripts, graphs, transforms."""

import contextlib
import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import pyinstrument_gpu as pig
from tests.helpers.hooked import WAYS, seen_alike
from tests.helpers.host_watch import watched_host
from tests.helpers.training import Model, Training

pytestmark = pytest.mark.filterwarnings("ignore")
CASES: dict[str, Callable[[], object]] = {}


def case(function: Callable[[], object]) -> Callable[[], object]:
    CASES[function.__name__] = function
    return function


def made(kind: type = Model) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


def computed(x: Tensor, y: Tensor) -> Tensor:
    """Uses what is hooked."""
    z = x[torch.tensor([0])] + x[x > 0].sum()
    loss = functional.mse_loss(x, y) + functional.l1_loss(x.to(torch.float32), y)
    return torch.where(z > 0, z, -z).sum() + loss + x.to("cpu").sum()


@case
def script() -> object:
    model, x = made(), torch.ones(4, 4)
    scripted, function = torch.jit.script(model), torch.jit.script(computed)
    return scripted.code, scripted(x).tolist(), function.code, function(x, x).tolist()


@case
def trace() -> object:
    model, x = made(), torch.ones(4, 4)
    traced, function = torch.jit.trace(model, x), torch.jit.trace(computed, (x, x))
    return traced.code, traced(x).tolist(), function.code, function(x, x).tolist()


def test_waits_are_counted_once_while_a_function_is_traced() -> None:
    def waits(x: Tensor) -> Tensor:
        y = x.to("cpu").clone()
        y[x > 0] = x[x < 1].sum()
        return y.to(torch.float64)

    def waits_in(act: Callable[[], object]) -> list[Any]:
        with pig.record() as recording, watched_host():
            act()
        syncs = recording.run.syncs
        counts = [(site.kind, site.line, site.totals.count) for site in syncs.sites]
        return [*counts, syncs.events["bytes"].tolist()]

    x = torch.zeros(3)
    traced = waits_in(lambda: torch.jit.trace(waits, x, check_trace=False))
    assert traced == waits_in(lambda: waits(x))


@case
def symbolic_trace() -> object:
    x = torch.ones(4, 4)
    graph, function = torch.fx.symbolic_trace(made()), torch.fx.symbolic_trace(computed)
    again = pickle.loads(pickle.dumps(graph))
    nodes = [(node.op, str(node.target)) for node in graph.graph.nodes]
    return graph.code, graph(x).tolist(), again(x).tolist(), function.code, function(x, x), nodes


@case
def proxies_of_operators() -> object:
    x = torch.ones(4, 4)
    made_of = made()
    return make_fx(lambda x, y: made_of(x) * y.sum())(x, x).code


@case
def exported() -> object:
    program = torch.export.export(made(), (torch.ones(4, 4),))
    return str(program), program.module()(torch.ones(4, 4)).tolist()


@case
def transforms() -> object:
    model, x, y = made(), torch.ones(5, 4), torch.zeros(5, 4)
    state = dict(model.named_parameters())

    def loss_of(state: Any, x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(model, state, (x,))
        return functional.mse_loss(result, torch.zeros(3))

    def plain(x: Tensor) -> Tensor:
        return functional.mse_loss(x.to(torch.float64), torch.ones(4)) + x[torch.tensor([1])].sum()

    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(state, x)
    found = [value.tolist() for value in each.values()]
    found.append(torch.func.jvp(plain, (x[0],), (y[0],)))
    found.append(torch.func.jacrev(plain)(x[0]).tolist())
    found.append(torch.func.hessian(lambda x: x.square().sum())(x[0]).tolist())
    with contextlib.suppress(RuntimeError):
        torch.func.vmap(lambda x: x.item())(x)
    try:
        torch.func.vmap(lambda x: x[x > 0])(x)
    except RuntimeError as error:
        found.append(str(error))
    return [one if isinstance(one, (list, str)) else [v.tolist() for v in one] for one in found]


@case
def fake_tensors() -> object:
    found = []
    with FakeTensorMode() as mode:
        model, x = nn.Linear(4, 3), torch.ones(2, 4)
        y = model(x)
        y.sum().backward()
        found += [y, x.to("cpu"), x.to("meta"), x[torch.tensor([0])], model.weight.grad, x.cpu()]
        for act in (x.sum().item, x.nonzero, lambda: x[x > 0], x.tolist, x.numpy):
            try:
                act()
            except Exception as error:
                found.append(type(error))
    found.append(mode.from_tensor(torch.ones(2)).to("meta"))
    return [(type(a), str(a.device), a.shape) if isinstance(a, Tensor) else a for a in found]


@case
def recomputed() -> object:
    calls: list[bool] = []
    found: list[Any] = []

    class Noted(Model):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    for use_reentrant in (True, False):
        model, x = made(Noted), torch.ones(4, 4, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
        found.append([parameter.grad.tolist() for parameter in model.parameters()])
    return found, calls


@pytest.fixture
def process_group() -> Iterator[None]:
    """Of this process alone."""
    store = torch._C._distributed_c10d.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    gc.collect()  # a model that outlives its group may wait for it forever
    torch.distributed.destroy_process_group()


def test_distributed_training_is_as_without_hooks(process_group: None) -> None:
    def observe() -> list[Any]:
        model = DistributedDataParallel(made())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(4, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [[parameter.tolist() for parameter in model.parameters()], list(model.state_dict())]

    seen_alike(observe, *WAYS.values())


@case
def data_parallel() -> object:
    model = nn.DataParallel(made())
    replica = made()._replicate_for_data_parallel()
    return model(torch.ones(4, 4)).tolist(), vars(replica).keys(), replica(torch.ones(4)).tolist()


@case
def parametrized() -> object:
    def linear() -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Linear(4, 4)

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).transpose(-1, -2)

    x, found = torch.ones(2, 4), []
    nn.utils.parametrize.register_parametrization(symmetric := linear(), "weight", Symmetric())
    models: list[Any] = [
        symmetric,
        nn.utils.weight_norm(linear()),
        nn.utils.parametrizations.weight_norm(linear()),
        nn.utils.parametrizations.orthogonal(linear()),
    ]
    for model in models:
        model(x).sum().backward()
        found.append([type(model).__mro__[1].__name__, model(x).tolist(), list(model.state_dict())])
        found.append([parameter.grad.tolist() for parameter in model.parameters()])
    return found


@case
def order_of_hooks() -> object:
    found: list[str] = []

    def noting(name: str) -> Any:
        return lambda *given: found.append(f"{name} {len(given)}")

    model = made()
    everywhere = nn.modules.module
    handles = [
        everywhere.register_module_forward_pre_hook(noting("any forward pre")),
        everywhere.register_module_forward_hook(noting("any forward")),
        everywhere.register_module_full_backward_pre_hook(noting("any backward pre")),
        everywhere.register_module_full_backward_hook(noting("any backward")),
        register_optimizer_step_pre_hook(noting("any step pre")),
        register_optimizer_step_post_hook(noting("any step post")),
    ]
    for name, module in model.named_modules():
        module.register_forward_pre_hook(noting(f"{name} pre"))
        module.register_forward_pre_hook(noting(f"{name} first"), prepend=True)
        module.register_forward_hook(noting(f"{name} keywords"), with_kwargs=True)
        module.register_full_backward_pre_hook(noting(f"{name} backward pre"))
        module.register_full_backward_hook(noting(f"{name} backward"))
    for name, parameter in model.named_parameters():
        parameter.register_hook(noting(f"{name} gradient"))
        parameter.register_post_accumulate_grad_hook(noting(f"{name} accumulated"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(noting("step pre"))
    optimizer.register_step_post_hook(noting("step post"))
    x = torch.ones(4, 4, requires_grad=True)
    model(x).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.eval()(x)
    for handle in handles:
        handle.remove()
    assert len(found) > 30
    return found


@case
def copies_and_pickles() -> object:
    training = Training()
    found: list[Any] = [training.run()]
    for copied in (copy.deepcopy(training), pickle.loads(pickle.dumps(training))):
        found.append(copied.run())
    found.append(len(pickle.dumps(training)))
    return found


@case
def whole_training() -> object:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Training(steps=3).run(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", CASES)
def test_it_is_as_without_hooks(name: str) -> None:
    seen_alike(CASES[name], *WAYS.values())
