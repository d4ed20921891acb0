# SPDX-License-Identifier: Apache-2.0
"""Command lines, and the ones that record what they run."""

import sys

import pytest

from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.gate.sides import RecordedCommand

RUN = "-m pyinstrument_gpu run -o F --overwrite --no-report"


@pytest.mark.parametrize(
    ("command", "recorded"),
    [
        ("python train.py --epochs 3", f"python {RUN} train.py --epochs 3"),
        ("/opt/bin/python3.12 -u a.py -m x", f"/opt/bin/python3.12 -u {RUN} a.py -m x"),
        ("python -X dev -Wignore -O a.py", f"python -X dev -Wignore -O {RUN} a.py"),
        ("python -W error a.py", f"python -W error {RUN} a.py"),
        (
            "python --check-hash-based-pycs never a.py",
            f"python --check-hash-based-pycs never {RUN} a.py",
        ),
        ("python -m package.train --lr 1", f"python {RUN} -m package.train --lr 1"),
        ("python -um train x", f"python -u {RUN} -m train x"),
        ("python -mtrain x", f"python {RUN} -m train x"),
        ("train.py --lang python", f"{sys.executable} {RUN} train.py --lang python"),
        ("-m train x", f"{sys.executable} {RUN} -m train x"),
        ("taskset -c 0 python train.py", f"taskset -c 0 python {RUN} train.py"),
        ("uv run python train.py", f"uv run python {RUN} train.py"),
        (
            "torchrun --nproc-per-node=2 -m pyinstrument_gpu run train.py",
            f"torchrun --nproc-per-node=2 {RUN} train.py",
        ),
        (
            "bin/pyinstrument-gpu run --steps 50 train.py",
            "bin/pyinstrument-gpu run -o F --overwrite --no-report --steps 50 train.py",
        ),
    ],
)
def test_program_is_found(command: str, recorded: str) -> None:
    words = RecordedCommand(command.split())
    assert words.with_options(["-o", "F", "--overwrite", "--no-report"]) == recorded.split()
    assert words.text == command


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "the command is empty"),
        ("make train", "can't see which program of 'make train' is to be recorded"),
        ("python", "there is no program in 'python'"),
        ("python -u -", "there is no program in"),
        ("python -c pass", "put it into a file"),
        ("torchrun --nproc-per-node=2 train.py", "write `-m pyinstrument_gpu run` in front of it"),
        ("accelerate launch train.py", "write `-m pyinstrument_gpu run` in front of it"),
        ("python -m torch.distributed.run train.py", "write `-m pyinstrument_gpu run` in front"),
    ],
)
def test_program_that_is_not_found(command: str, reason: str) -> None:
    with pytest.raises(GateError, match=reason):
        RecordedCommand(command.split())
