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


def run_of(folder: Path, program: str) -> Run:
    write(folder, "train.py", TRAIN + program)
    done = launched(folder, "--modules=all", "--modules-every=1", "train.py", imported="torch")
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
