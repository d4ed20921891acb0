# SPDX-License-Identifier: Apache-2.0
"""The ENVIRONMENT document: where a run was recorded, with a declaration of all that it may say.

Whoever reads `Run.environment` relies on these types and ranges, and on file names, numbers of
processes and times made of them. So what does not fit is left out, and the run says so.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, get_type_hints

from msgspec import Meta, Struct, convert, to_builtins

from pyinstrument_gpu.core.clocks import LATEST_START_NS
from pyinstrument_gpu.core.file.json_document import Count, decode_object

_PID_LIMIT = 1 << 31  # what a process id, and a rank of a collective, is counted in
_MOST = Meta(max_length=10_000)

# No control or format characters, separators of lines, lone surrogates or private characters.
_Text = Annotated[
    str,
    Meta(
        max_length=1000,
        pattern=r"\A[^\0-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e"
        r"\u2060-\u206f\ud800-\uf8ff\ufeff]*\Z",
    ),
]
# What Python makes of the bytes that the system passes: they need not be UTF-8.
_SystemText = Annotated[str, Meta(pattern=r"\A[^\0\ud800-\udc7f\udd00-\udfff]*\Z")]
_Folder = Annotated[str, Meta(pattern=r"\A/[^\0\ud800-\udc7f\udd00-\udfff]*\Z")]
_Version = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z.+!_-]{1,100}\Z")]
_IsoTime = Annotated[
    str, Meta(pattern=r"(?a)\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z")
]
_Number = Annotated[int, Meta(ge=0, lt=10**18)] | Annotated[float, Meta(ge=0, lt=1e18)]
_From0 = Annotated[int, Meta(ge=0, lt=_PID_LIMIT)]
_From1 = Annotated[int, Meta(ge=1, lt=_PID_LIMIT)]
_Time = Annotated[int, Meta(ge=0, lt=LATEST_START_NS)]
_Workers = Annotated[int, Meta(ge=0, lt=1 << 16)]  # each has a name, and is played again


class _Clock(TypedDict, total=False):
    kind: Annotated[str, Meta(pattern=r"\A[a-z_]{1,100}\Z")]
    frequency_hz: _Number


class _Anchor(TypedDict, total=False):
    run_ns: _Time
    monotonic_ns: _Time
    monotonic_raw_ns: _Time
    realtime_ns: _Time


class _Overhead(TypedDict, total=False):
    phase_ns: _Number
    step_ns: _Number


class _Limits(TypedDict, total=False):
    history_spans: Count | None
    max_bytes: Count


class _DeviceTiming(TypedDict, total=False):
    mode: _Text
    budget: _Number | None
    share_boundaries_ns: Count


class _Uncommitted(TypedDict):
    hash: Annotated[str, Meta(pattern=r"\A[0-9a-f]{1,64}\Z")] | None
    files: Annotated[list[_SystemText], _MOST]


class _Copy(TypedDict):
    pinned: bool
    non_blocking: bool
    count: Count
    bytes: Count


class _PhaseLine(TypedDict):
    phase: _Text
    file: _SystemText
    line: _From0


class _StepNumber(TypedDict):
    at_ns: _Time
    number: Count


class _ProgramEnd(TypedDict, total=False):
    exit_code: Annotated[int, Meta(ge=0, lt=256)]
    exception: _Text
    lost_peer: bool


class ProgramFacts(Struct, frozen=True, omit_defaults=True):
    """What is known of a program beside its phases, on which conclusions from its run rest. None is
    unknown: nothing looked, or what looked could have missed it.

    Where the steps of a program draw from several DataLoaders with different options,
    `loader_pins`, `loader_prefetch` and `loader_persistent` are those with which most batches were
    loaded.

    Attributes:
        loader_workers: the most worker processes of a DataLoader from which steps drew batches; 0
            if they were all made in the process itself.
        loader_pins: whether it was told to pin memory. (Without an accelerator, torch ignores it.)
        loader_prefetch: how many batches each worker makes ahead; 0 without workers.
        loader_persistent: whether its workers stay from one epoch to the next.
        other_streams: whether while it was recorded the program had streams other than its
            device's default one: it made one, put work on one, let one wait, worked on several
            devices, or used a process group that may have some of its own.
        ranks: how many processes train together.
        rendezvous_ns: how long the first process group took to be made, if it connects each rank
            with all others, as gloo does: then it waits until the last of them has come.
    """

    loader_workers: _Workers | None = None
    loader_pins: bool | None = None
    loader_prefetch: _From0 | None = None
    loader_persistent: bool | None = None
    other_streams: bool | None = None
    ranks: _From1 | None = None
    rendezvous_ns: Count | None = None


class Environment(TypedDict, total=False):
    """The type of each field. Fields of a newer version, which are not in here, are ignored."""

    host: _Text
    rank: _From0
    world_size: _From1
    local_rank: _From0
    job: _Text
    restarts: _From0
    slurm_job: _Text
    pid: _From1
    process_ns: _Time
    boot_id: Annotated[str, Meta(pattern=r"\A[0-9a-f-]{1,64}\Z")]
    asleep_ns: _Time
    python: _Version
    platform: _Text
    cores: _From1
    torch_threads: _From1
    torch: _Text
    cuda: _Text | None
    accelerator: _Text
    gpus: Annotated[list[_Text], _MOST]
    gpus_error: _SystemText
    driver: _Text | None
    packages: Annotated[dict[_Text, _Text], _MOST]
    variables: Annotated[dict[_Text, _SystemText], _MOST]
    command: Annotated[list[_SystemText], _MOST]
    arguments: Annotated[list[_SystemText], _MOST]
    cwd: _Folder | None
    program_folder: _Folder
    started: _IsoTime
    version: _Version
    revision: Annotated[str, Meta(pattern=r"\A[0-9A-Za-z]{1,64}\Z")]
    uncommitted: _Uncommitted
    run_id: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    clock: _Clock
    anchor: _Anchor
    overhead: _Overhead
    limits: _Limits
    device_timing: _DeviceTiming | None
    watchdog_ns: Count
    children_cpu_s: _Number
    optimizer_seen: bool | None
    copies_to_device: Annotated[list[_Copy], _MOST]
    step_numbers: Annotated[list[_StepNumber], Meta(min_length=1, max_length=100)]
    phase_lines: Annotated[list[_PhaseLine], _MOST]
    module_notes: Annotated[list[_Text], _MOST]
    program_end: _ProgramEnd
    framework: _Text
    framework_steps: Count
    program_facts: ProgramFacts


_FIELDS = get_type_hints(Environment, include_extras=True)


def decode_environment(data: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields that fit, and the names of those that do not.

    Raises:
        RunFileDamagedError: the document is no JSON object.
    """
    found = decode_object(data, "ENVIRONMENT", dict[str, Any])
    facts: dict[str, Any] = {}
    left_out = []
    for name in [name for name in _FIELDS if name in found]:
        try:
            facts[name] = to_builtins(convert(found[name], _FIELDS[name]))
        except ValueError:
            left_out.append(name)
    return facts, tuple(left_out)
