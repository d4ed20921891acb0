# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run --modules`."""

from pathlib import Path

from pyinstrument_gpu.core.run import Run
from tests.helpers.launched import launched, write

TRAIN = """
    import torch
    from torch import nn

    def new():
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
"""


def run_of(folder: Path, program: str, select: str = "all") -> Run:
    write(folder, "train.py", TRAIN + program)
    options = (f"--modules={select}", "--modules-every=1")
    done = launched(folder, *options, "train.py", imported="torch")
    assert done.returncode == 0, done.stderr
    return Run.load(folder / "run.gpurun")


def test_each_model_that_is_trained_is_watched(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        """
    teacher = new().eval()
    for _ in range(20):
        model = new()
        teacher(torch.ones(3, 4))
        train(model)
""",
    )
    assert {name: run.modules[name].calls for name in "012"} == dict.fromkeys("012", 20)
    backward = run.modules["2"].backward
    assert backward is not None
    assert backward.count == 20
    assert run.notes == ()


def test_a_part_of_a_model_that_is_called_on_its_own_is_no_further_model(tmp_path: Path) -> None:
    """As in the backward pass, where the `forward` of a block is computed again."""
    run = run_of(
        tmp_path,
        """
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = new()

        def forward(self, x):
            return checkpoint(self.block.forward, self.block[0](x), use_reentrant=False)

    model = Model()
    for _ in range(3):
        train(model)
""",
        "block.0",
    )
    assert {name: times.calls for name, times in run.modules.items()} == {"block.0": 6}
    assert run.notes == ()


def test_of_too_many_models_at_once_some_are_not(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        """
    models = [new() for _ in range(20)]
    for model in models + models:
        train(model)
""",
    )
    assert {name: run.modules[name].calls for name in "012"} == dict.fromkeys("012", 32)
    assert [note for note in run.notes if "more than 16 models at once" in note]
