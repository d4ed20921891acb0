# SPDX-License-Identifier: Apache-2.0
"""The preview: a loop in the style of a public program, and lines of others, with those that would
wait for a GPU. More loops are previewed under `run` (tests/launch/test_training_programs.py).

A comment behind a line says what waits there and how often in the whole run. Every other line must
not be listed.
"""

import copy
import gc
import random
import re
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.report.document import document_of
from tests.helpers.programs import Programs

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the position of a call is known from 3.11 on"
)

NANO_GPT = """
import math, torch
from torch import nn
from torch.nn import functional as F
device = "cuda"
device = "cpu" if not torch.cuda.is_available() else device
data = torch.randint(0, 16, (500,))
def get_batch():
    ix = torch.randint(len(data) - 8, (4,))
    x = torch.stack([data[i:i + 8] for i in ix])
    y = torch.stack([data[i + 1:i + 9] for i in ix])
    x, y = x.to(device), y.to(device)  # h2d_pageable 14
    return x, y
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(16, 8), nn.Embedding(8, 8)
        self.attn, self.head = nn.Linear(8, 24), nn.Linear(8, 16)
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 8, 8))
    def forward(self, idx, targets=None):
        device = idx.device
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=device)
        x = self.wte(idx) + self.wpe(pos)
        q, k, v = self.attn(x).split(8, dim=2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        att = att.masked_fill(self.bias[:, :idx.size(1), :idx.size(1)] == 0, float("-inf"))
        logits = self.head(F.softmax(att, dim=-1) @ v)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, 16), targets.view(-1), ignore_index=-1)
    @torch.no_grad()
    def generate(self, idx, count):
        for _ in range(count):
            logits, _ = self(idx[:, -8:])
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx_next = torch.multinomial(probs, num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx
@torch.no_grad()
def estimate_loss():
    losses = torch.zeros(2)
    for k in range(2):
        X, Y = get_batch()
        _, loss = model(X, Y)
        losses[k] = loss.item()  # item 2
    return losses.mean()
model = Block()
model.to(device)  # h2d_pageable 7
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
X, Y = get_batch()
for step in range(4):
    if step == 2:
        print(f"val {estimate_loss():.4f}")
    logits, loss = model(X, Y)
    X, Y = get_batch()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(loss.item())  # item 4
context = torch.zeros((1, 1), dtype=torch.long, device=device)
print(model.generate(context, 2)[0].tolist())  # tolist 1
result = [loss.detach(), *model.parameters()]
"""

OTHERS = """
import copy, torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Linear(3, 3, device=device)
target = copy.deepcopy(net)
x = torch.ones(4, 3).to(device)  # h2d_pageable 1
reward = torch.tensor([1.0, 2.0], device=device)  # h2d_pageable 1
y = target(x)
mask = y > 0
y[mask] = 0.0
selected = y[mask]  # boolean_index 1
if mask.any():  # bool 1
    pass
while not (y < 9).all():  # bool 1
    break
found = mask.nonzero()  # data_dependent_shape 1
index = torch.tensor([0, 1])
row = y[index]  # h2d_pageable 1
same = torch.equal(y, y)  # compare 1
half = y.to(torch.float64)
host = half.sum().to("cpu")  # to_cpu 1
host = host.detach()
filled = torch.zeros(2, device=device).fill_(host)
moved = filled.to(torch.device("cpu"))  # to_cpu 1
print(moved.mean().item(), torch.stack([moved]).sum().item())
state = torch.get_rng_state()
float(host), host.item(), bool(host > 0)
number = int(half.detach().sum())  # int 1
print(y)  # print 1
array = y.detach().numpy()  # raises 1
back = torch.from_numpy(array).sum().item()
loss = net(x).cpu().sum()  # cpu 1
loss.backward()
grad = net.weight.grad.norm().item()  # item 1
result = [y, *net.parameters(), net.weight.grad]
"""

READS = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(3, 2).to(device)  # h2d_pageable 2
y = net(torch.ones(4, 3).to(device)).sum(0).detach()  # h2d_pageable 1
a, b = y[0], y[1]
rewards = torch.tensor([a, b])  # item 2
nested = torch.tensor([[a, 1.0], [2.0, 3.0]])  # item 1
best = max(a, b)  # bool 1
ordered = sorted([a, b])  # bool 1
text = "%.1f" % b  # format 1
result = [rewards, nested, best, *ordered]
"""

CREATED = """
import torch
from torch.nn import functional as F
device = "cuda" if torch.cuda.is_available() else "cpu"
labels = torch.tensor([0, 2, 1], device=device)  # h2d_pageable 1
known = F.one_hot(labels, 4)
counted = F.one_hot(labels)  # data_dependent_shape 1
print(known.sum().item())  # item 1
power = torch.linalg.matrix_power(known[:2, :2].float(), 0)
print(power[0, 0].item())  # item 1
buffer = torch.zeros(4, device=device)
buffer[0] = 5.0  # h2d_pageable 1
buffer[1:3] = 6.0
buffer[torch.tensor([True, False, True, False])] = torch.ones(2, device=device)
chosen = buffer[torch.tensor([True, False, True, False])]
noise = torch.distributions.Normal(buffer, 1.0, validate_args=False)  # h2d_pageable 1
noise = noise.sample()  # check 1
again = torch.normal(buffer, 1.0)
middle = buffer.nanmedian()  # check 1
encoder = torch.nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
encoder = torch.nn.TransformerEncoder(encoder, 1, enable_nested_tensor=False)
encoder.to(device)  # h2d_pageable 12
causal = torch.nn.Transformer.generate_square_subsequent_mask(3, device=device)
encoded = encoder(torch.ones(1, 3, 4, device=device), mask=causal)  # bool 1
adjacency = torch.eye(3).to_sparse().to(device)  # h2d_pageable 1
product = torch.sparse.mm(adjacency, torch.ones(3, 2, device=device))
print(product.sum().item())  # item 1
host = F.one_hot(torch.tensor([0, 1]))
print(host.sum().item())
result = [known, counted, power, buffer, chosen, noise, again, encoded, product, host]
"""

PROGRAMS = {
    "nano_gpt": NANO_GPT,
    "others": OTHERS,
    "reads": READS,
    "created": CREATED,
}


def ran(source: str, file: Path) -> dict[str, Any]:
    torch.manual_seed(1)
    random.seed(1)
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, str(file), "exec"), space)
    return space


def previewed(source: str, folder: Path) -> tuple[Run, dict[str, Any]]:
    file = folder / "program.py"
    file.write_text(source)
    with pig.record() as recording, pig.watch_syncs(as_if_cuda=True):
        space = ran(source, file)
    return recording.run, space


def expected(source: str) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for number, line in enumerate(source.splitlines(), 1):
        if mark := re.search(r"  # (\w+) (\d+)$", line):
            found[number, mark[1]] = int(mark[2])
    return found


def waits(run: Run) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for site in run.syncs.sites:
        if site.totals.count:
            found[site.line, site.kind.name.lower()] += site.totals.count
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_that_would_wait(name: str, tmp_path: Path) -> None:
    source = PROGRAMS[name]
    run, space = previewed(source, tmp_path)
    random_state = torch.get_rng_state()
    assert waits(run) == expected(source)  # without a doubt: those are counted, too
    assert set(run.syncs.events["duration_ns"].tolist()) == {-1}
    plain = ran(source, tmp_path / "program.py")
    assert torch.equal(torch.get_rng_state(), random_state)
    for before, after in zip(plain["result"], space["result"], strict=True):
        assert before.dtype == after.dtype and torch.equal(before, after)


def test_program_that_moves_nothing_is_previewed_by_its_parameters(tmp_path: Path) -> None:
    source = """
import torch
net = torch.nn.Linear(2, 1)
x = torch.ones(3, 2)
loss = net(x).sum()
print(loss.item(), x.sum().item())
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == {(6, "item"): 1, (6, "presumed"): 1}
    assert run.syncs.total.count == 1
    report = run.report(verbose=True, width=200)
    assert "Not certain: no tensor had been moved to a device" in report
    assert "In allow_sync regions" not in report


def test_program_that_moves_nothing_has_no_copies_to_a_device(tmp_path: Path) -> None:
    """For a GPU, it would have its indices there, too."""
    source = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
y = net(torch.ones(3, 2))
print(y[torch.tensor([0, 1])].sum().item())  # item 1
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == {(5, "item"): 1, (5, "presumed"): 1}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_functions_for_torch_jit_stay_what_it_knows(tmp_path: Path) -> None:
    source = """
import torch
def function(x):
    classes = torch.nn.functional.one_hot(torch.tensor([0, 1]), 2)
    return classes.sum() + torch.as_tensor([1.0, 2.0]).sum() + x
scripted = torch.jit.script(function)
result = [scripted(torch.ones(1))]
"""
    _, space = previewed(source, tmp_path)
    assert space["result"] == [torch.tensor([6.0])]


def test_copies_of_a_checkpoint_are_not_named(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "model.pt")
    source = f"""
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(3, 2).to(device)  # h2d_pageable 2
net.load_state_dict(torch.load({str(tmp_path / "model.pt")!r}))
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == expected(source)


def test_device_of_a_tensor_is_followed_through_a_parameter(tmp_path: Path) -> None:
    source = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
class Scale:
    def make(self, place, size=1):
        return torch.ones(size, device=place)
    def of(self, x):
        return self.make(x.device)
host = torch.ones(2)
x = host.to(device)  # h2d_pageable 1
Scale().of(x).item()  # item 1
Scale().of(host).item()
Scale().make(size=3, place=x.device).tolist()  # tolist 1
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == expected(source)


def test_sharing_memory_with_other_processes_is_no_wait(tmp_path: Path) -> None:
    source = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(3, 2).to(device)  # h2d_pageable 2
net.share_memory()
net.weight.sum().item()  # item 1
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == expected(source)


def test_preview_says_where_it_is_wrong(tmp_path: Path) -> None:
    """Only a program that would fail on a GPU, or one that the preview misreads, mixes tensors."""
    source = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(2, 1).to(device)
y = net(torch.ones(3, 2))
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == {(4, "h2d_pageable"): 2, (5, "unplaced"): 1}
    assert "Not certain: tensors of the host meet tensors of the device" in run.report(
        verbose=True, width=200
    )


NOTHING_PLACED = {
    "tutorial": """
import torch
device = torch.device("cpu")  # edit me
net = torch.nn.Linear(2, 1).to(device)
def loss_of(x):
    return net(x.to(device)).sum()
""",
    "leaf tensors": """
import torch
weight = torch.ones(2, 1, requires_grad=True)
def loss_of(x):
    (gradient,) = torch.autograd.grad((x @ weight).sum(), [weight], create_graph=True)
    return (x @ (weight - gradient)).sum()
""",
    "beside parameters": """
import torch
net, lstm = torch.nn.Linear(2, 1), torch.nn.LSTM(1, 1)
def loss_of(x):
    x = net(x.to(net.weight))
    return (lstm(x)[0] + torch.ones(1, device=net.weight.device)).sum()
""",
}
LOOP = """
import pyinstrument_gpu as pig
for _ in pig.gpu_steps(range(2)):
    loss_of(torch.ones(3, 2)).item()
"""


def verdict(run: Run) -> str:
    return document_of(run).verdict


@pytest.mark.parametrize("name", NOTHING_PLACED)
def test_what_a_program_that_places_nothing_waits_for_is_not_known(
    name: str, tmp_path: Path
) -> None:
    run, _ = previewed(NOTHING_PLACED[name] + LOOP, tmp_path)
    assert verdict(run) == (
        "A preview on the host: the program places nothing on a device, so where it would wait for "
        "a GPU is not known."
    )
    assert "no watched call" not in run.report(verbose=True)


@pytest.mark.thorough
def test_what_shards_on_a_mesh_of_the_host_waits_for_is_not_known(tmp_path: Path) -> None:
    source = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = fully_shard(torch.nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,)))
def loss_of(x):
    return net(x).sum()
"""
    run, _ = previewed(source + LOOP + "dist.destroy_process_group()", tmp_path)
    assert "the program places nothing on a device" in verdict(run)


OF_A_CLASS = """
import torch

class Image(torch.Tensor):
    pass

device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(2, 1).to(device)
def loss_of(x):
    image = x.as_subclass(Image).to(device)
    return net(image).sum()
"""


def test_tensors_of_a_class_of_their_own_are_named(tmp_path: Path) -> None:
    """What they would wait for is not known, which is not the same as nothing."""
    run, _ = previewed(OF_A_CLASS + LOOP, tmp_path)
    assert verdict(run) == (
        "A preview on the host: it did not follow tensors of class Image, so where its steps "
        "would wait for a GPU is not known; 1 other line would once, or outside steps; not all of "
        "this is certain."
    )
    report = run.report(width=200)
    assert "Not certain: tensors of class Image were not followed, at " in report
    assert "In allow_sync regions" not in run.report(verbose=True)


@pytest.mark.parametrize("package", ["tensordict", "transformers"])
def test_only_known_functions_of_libraries_place_what_they_are_given(
    package: str, tmp_path: Path
) -> None:
    """Another `to` may serve a buffer that lies on the host."""
    library = tmp_path / "site-packages" / package / "base.py"
    library.parent.mkdir(parents=True)
    library.write_text("def to(x, device):\n    return x.to(device=device)\n")
    source = f"""
import pathlib
import torch
space = {{"__name__": "{package}.base"}}
exec(compile(pathlib.Path("{library}").read_text(), "{library}", "exec"), space)
net = torch.nn.Linear(2, 1)
def loss_of(x):
    return net(space["to"](x, torch.device("cpu"))).sum()
"""
    run, _ = previewed(source + LOOP, tmp_path)
    is_known = package == "transformers"
    assert ((8, "h2d_pageable") in waits(run)) is is_known
    assert ("places nothing on a device" in verdict(run)) is not is_known


def test_training_beside_what_was_placed_is_doubted(tmp_path: Path) -> None:
    source = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
placed = torch.nn.Linear(2, 1).to(device)
weight = torch.ones(2, 1, requires_grad=True)
def loss_of(x):
    return (x @ weight).sum()
"""
    run, _ = previewed(source + LOOP, tmp_path)
    assert verdict(run) == (
        "A preview on the host: no line of its steps was found that would make it wait for a GPU; "
        "1 other line would once, or outside steps; not all of this is certain."
    )
    assert "or are trained while others lie there, so the preview may be wrong" in run.report(
        width=200
    )


def test_a_line_that_waits_at_several_lines_of_a_library_is_one(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("def read(x):\n    x.item()\n    x.item()\n    return x.item()\n")
    source = f"""
import pathlib
import torch
space = {{"__name__": "library"}}
exec(compile(pathlib.Path("{library}").read_text(), "{library}", "exec"), space)
net = torch.nn.Linear(2, 1).to("cuda" if torch.cuda.is_available() else "cpu")
def loss_of(x):
    loss = net.weight.sum()
    space["read"](loss)
    return loss
"""
    run, _ = previewed(source + LOOP, tmp_path)
    lines = [line.split() for line in run.report(width=200).splitlines()]
    rows = [line[1:] for line in lines if line and line[0].endswith("program.py:9")]
    assert rows == [[".item()", "3.00", "steps"]]


def test_lines_of_steps_come_before_those_that_wait_once(tmp_path: Path) -> None:
    source = """
import torch
import pyinstrument_gpu as pig
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(2, 1).to(device)
x = torch.ones(3, 2, device=device)
for step in pig.gpu_steps(range(3)):
    loss = net(x).sum()
    if step == 1:
        loss.item(), loss.item(), loss.item(), loss.item()
    if step:
        loss.item()
for _ in range(5):
    loss.item()
"""
    run, _ = previewed(source, tmp_path)
    syncs = document_of(run).sections["syncs"]
    assert syncs is not None
    lines = [(int(site.line.rpartition(":")[2]), site.is_of_steps) for site in syncs.sites]
    assert lines == [(12, True), (14, False), (10, False), (5, False)]
    assert verdict(run) == (
        "A preview on the host: 1 line of its steps would make it wait for a GPU, how long is "
        "unknown; 3 other lines would once, or outside steps."
    )
    report = run.report(verbose=True, width=200)
    assert "Below the line: what would wait once, or outside steps" in report


def test_lines_that_wait_between_most_steps_count_as_lines_of_steps(tmp_path: Path) -> None:
    source = """
import torch
import pyinstrument_gpu as pig
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(2, 1).to(device)
x = torch.ones(3, 2, device=device)
for step in range(4):
    with pig.gpu_step():
        loss = net(x).sum()
    loss.item()
    if step == 2:
        loss.tolist()
"""
    run, _ = previewed(source, tmp_path)
    syncs = document_of(run).sections["syncs"]
    assert syncs is not None
    lines = [(int(site.line.rpartition(":")[2]), site.is_of_steps) for site in syncs.sites]
    assert lines[0] == (10, True)
    assert not any(is_of_steps for _, is_of_steps in lines[1:])


def test_times_of_a_preview_are_not_those_of_the_program(tmp_path: Path) -> None:
    run, _ = previewed(NOTHING_PLACED["tutorial"] + LOOP, tmp_path)
    report = run.report(verbose=True, width=200)
    assert "! The times are those of a preview, not of the program" in report
    assert "Where the step goes" not in report and "total us" not in report
    page = html_page([run], ["run.gpurun"])
    assert "The times are those of a preview, not of the program" in page


def test_error_behind_a_guard_is_no_certain_one(tmp_path: Path) -> None:
    source = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(2).to(device)  # h2d_pageable 1
if x.is_cuda:
    x = x.cpu()
x.numpy()  # raises 1
"""
    run, _ = previewed(source, tmp_path)
    assert waits(run) == expected(source)
    report = run.report(verbose=True, width=200)
    assert ".numpy() may raise" in report and "would raise" not in report
    assert (
        "Not certain: .numpy() of a tensor on a GPU is an error, unless the program copies it to "
        "the host first"
    ) in report


def test_dropped_models_are_not_kept(tmp_path: Path) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    file = tmp_path / "model.pt"

    def used() -> list[torch.Tensor]:
        net = torch.nn.Linear(3, 2).to(device)
        half = copy.deepcopy(net).half()
        torch.save({"net": half, "state": net.state_dict()}, file)
        tensors: list[torch.Tensor] = [*net.parameters(), *half.parameters()]
        loaded = torch.load(file, map_location=device, weights_only=False)
        net.load_state_dict(loaded["state"])
        return [*tensors, *loaded["net"].parameters(), *loaded["state"].values()]

    with pig.record(), pig.watch_syncs(as_if_cuda=True):
        kept = [weakref.ref(one) for tensor in used() for one in (tensor, tensor.untyped_storage())]
        gc.collect()
        assert [reference() for reference in kept] == [None] * len(kept)


def test_recording_after_a_warmup_knows_what_was_placed_before(tmp_path: Path) -> None:
    program, run_file = tmp_path / "program.py", tmp_path / "run.gpurun"
    program.write_text("""
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(2, 1).to(device)
x = torch.ones(3, 2, device=device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net(x).sum().backward()
    optimizer.step()
""")
    options = ["--as-if-cuda", "--warmup", "2", "-o", str(run_file)]
    done = Programs().run(program, options=options)
    assert done.exit_code == 0, done.errors
    syncs = Run.load(run_file).syncs
    assert syncs.is_as_if and syncs.is_placed


def test_everything_is_put_back() -> None:
    places: list[Any] = [torch, torch.Tensor, torch.nn.Module, torch.UntypedStorage]
    before = [dict(vars(place)) for place in places]
    with pig.watch_syncs(as_if_cuda=True):
        assert torch.Tensor.to is not before[1].get("to")
    for place, names in zip(places, before, strict=True):
        assert vars(place).keys() == names.keys()
        assert all(vars(place)[name] is value for name, value in names.items())
    assert torch._C._len_torch_dispatch_stack() == 0
