# SPDX-License-Identifier: Apache-2.0
"""The causes: by which words they are named, which area is theirs, which advice is harmful.

Where a program's cause is, it marks itself: see `scoring.places`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.causes.scoring import Truth, places

PROGRAMS = Path(__file__).with_name("programs")
_FEWER_WORKERS = r"(?:without|fewer|no) (?:loader )?workers|num_workers=0|workers than"
_MORE_WORKERS = r"more (?:loader )?workers|raise num_workers"


@dataclass(frozen=True)
class Cause:
    """A program and what is wrong with it.

    Attributes:
        name: that of its file.
        words, area, topics, harmful: those of its `Truth`.
        options: those of `run`.
        before: what stands in front of the command line.
        environment: of the program.
    """

    name: str
    words: str
    area: str
    topics: Sequence[str] = ()
    harmful: str = ""
    options: Sequence[str] = ()
    before: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    @property
    def truth(self) -> Truth:
        found = places(self.program)
        return Truth(self.words, self.area, self.topics, self.harmful, *found)


_DATA = r"\bdata\b"
_OUTSIDE = r"outside"

CAUSES = (
    Cause("slow_transform", "", _DATA, ["workers"]),
    Cause("slow_collate", "", _DATA, ["workers"]),
    Cause("tokenizer", "", f"{_OUTSIDE}|{_DATA}", ["workers"]),
    Cause("own_work_in_data", "", _DATA, [], _MORE_WORKERS),
    Cause("workers_in_memory", _FEWER_WORKERS, _DATA, ["workers"], _MORE_WORKERS),
    Cause("python_rnn", "", "forward|backward"),
    Cause("nan_checks", "", _OUTSIDE + "|backward"),
    Cause("anomaly", r"anomaly", "forward|backward"),
    Cause("kept_graph", r"graph|memory (?:of the process )?grows", "memory", ["graph", "memory"]),
    Cause("growing_list", "", _OUTSIDE),
    Cause("ema_loop", "", _OUTSIDE),
    Cause("optimizer_loop", r"foreach|fused", "optimizer", ["optimizer"]),
    Cause("double", r"double precision|float64|float32", "forward|backward", ["precision"]),
    Cause("threads", r"threads", "threads|processors", ["threads"]),
    Cause("padding", r"\bpad|length|size of (?:the|their) batch|tokens", "slow", ["padding"]),
    Cause("recompile", r"recompil|compil", "compil", ["compile"]),
    Cause("evaluation", r"\beval", "eval|" + _OUTSIDE, ["evaluation"]),
    Cause("checkpoints", r"checkpoint", "checkpoint|saves?", ["checkpoint", "disk"]),
    Cause("garbage", r"garbage collect", "collect", ["garbage"]),
    Cause("histograms", "", _OUTSIDE, ["logging"]),
    Cause("file_per_item", "", _DATA, ["workers", "disk"]),
    Cause("cold_reads", "", _DATA, ["workers", "disk"]),
    Cause("too_few_workers", _MORE_WORKERS, _DATA, ["workers"]),
    Cause("too_many_workers", _FEWER_WORKERS, "data|processors", ["workers"], _MORE_WORKERS),
    Cause("workers_each_epoch", r"persistent_workers|start(?:ed|ing)? anew", "worker", ["workers"]),
    Cause("hooks_pile_up", r"hook|grows", "forward"),
    Cause("activation_hooks", "", "forward"),
    Cause("growing_buffer", "", _OUTSIDE),
    Cause("recomputation", r"recompute|recomputation|checkpoint", "backward", ["checkpoint"]),
    Cause("tiny_batches", r"batch size|larger batch", "step", ["batch size"]),
    Cause("fsync", r"", _OUTSIDE, ["disk"]),
    Cause("progress_bar", "", _OUTSIDE, ["logging"]),
    Cause("metrics_each_step", "", _OUTSIDE, ["sync"]),
    Cause("torchmetrics_each_step", "", f"metric|{_OUTSIDE}"),
    Cause("print_tensor", "", _OUTSIDE, ["logging"]),
    Cause("page_faults", r"", f"{_OUTSIDE}|fault", ["faults"]),
    Cause("memory_leak", "memory", "memory", ["memory"]),
    Cause(
        "worker_memory",
        r"memory of (?:the|its) worker|workers?.{0,40}memory",
        "memory",
        ["memory"],
        _MORE_WORKERS,
    ),
    Cause("other_program", r"other process|processes that it started", "processor"),
    Cause("cpu_limit", r"processor", "processor", ["threads"]),
    Cause("logging_handler", "", f"logging|{_OUTSIDE}", ["logging"]),
    Cause("rollout", "", f"{_OUTSIDE}|no_grad|rollout"),
    Cause("clip_loop", "", _OUTSIDE),
    Cause("gil_thread", r"\bGIL\b|thread", "thread|GIL", ["GIL", "threads"]),
    Cause("lock", "", _OUTSIDE, ["lock"]),
    Cause("autocast_slow", r"autocast|bfloat16", "forward|backward", ["precision"]),
    Cause("json_log", "", _OUTSIDE, ["disk", "logging"]),
    Cause("deepcopy_state", "", _OUTSIDE),
    Cause("list_to_tensor", "", _DATA, ["workers"]),
    Cause("one_hot_loop", "", _OUTSIDE),
    Cause("confusion_loop", "", _OUTSIDE),
    Cause("grad_norm_item", "", _OUTSIDE, ["sync"]),
    Cause("heads_loop", "", "forward"),
    Cause("per_sample_forward", "", "forward"),
    Cause("zip_read", "", _DATA, ["workers", "disk"]),
    Cause("parse_text", "", _DATA, ["workers"]),
    Cause("subprocess_each", "", f"{_OUTSIDE}|process"),
    Cause("pickle_history", "", _OUTSIDE, ["disk", "checkpoint"]),
    Cause("slow_scheduler", "", "scheduler"),
    Cause("loss_loop", "", f"loss|{_OUTSIDE}"),
    Cause("slow_sampler", "", _DATA, ["workers"]),
    Cause("tolist", "", _OUTSIDE, ["sync"]),
    Cause("sleep_retry", "", _DATA, ["workers"]),
    Cause("seen_list", "", _OUTSIDE),
    Cause("create_graph", r"graph", "backward|memory", ["graph", "memory"]),
)
