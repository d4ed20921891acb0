# SPDX-License-Identifier: Apache-2.0
"""What a run is called where it is shown as a process."""

from __future__ import annotations

import os
import shlex

from pyinstrument_gpu.core.run import Run

_MAX_COMMAND_CHARACTERS = 200


def process_name(run: Run, rank: int | None = None) -> str:
    """Its rank, if it is one, and its command, without folders: "rank 3: python train.py".

    Args:
        rank: what its rank is called; None for that of the run itself.
    """
    program, *arguments = run.environment.get("command") or ["process"]
    name = shlex.join([os.path.basename(program), *arguments])[:_MAX_COMMAND_CHARACTERS]
    rank = run.environment.get("rank") if rank is None else rank
    return name if rank is None else f"rank {rank}: {name}"
