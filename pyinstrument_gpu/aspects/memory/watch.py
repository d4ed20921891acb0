# SPDX-License-Identifier: Apache-2.0
"""The watch of a recording on memory: by phase, and when there is none left.

The allocator of PyTorch is asked as soon as CUDA is in use, on the device of the thread that opens
steps. Before that, and in a run without a GPU, it is the memory of the process. Its peaks are
reset only if exact ones are asked for, and then the program sees them as if they were not
(csrc/python/allocator_peaks.h).
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pyinstrument_gpu.aspects.memory import out_of_memory
from pyinstrument_gpu.aspects.memory.fold import MemoryFold, saved_by_phase
from pyinstrument_gpu.aspects.memory.holders import save_snapshot
from pyinstrument_gpu.aspects.memory.looks import MemoryLooks
from pyinstrument_gpu.aspects.memory.out_of_memory import OutOfMemoryLog, allocated_and_reserved
from pyinstrument_gpu.aspects.memory.program_objects import holders_of
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import torch_with_cuda, undo_all, when_imported

BUDGET = 0.0005
"""The share of time that readings may take."""
_SHARE_OF_WRITING = 0.001
_SHORTEST_PAUSE_S = 1.0
_READS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
"""Of torch._C: through these leads each way in Python to an allocator's peaks. The second one is
that of torch.accelerator, from torch 2.9 on."""
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_NO_PEAK_RESET = "the memory of the process has none, only that of PyTorch's allocator on a GPU"
"""Of the process: everybody would see that its peak was reset."""


class AllocatorSource(Protocol):
    """An allocator whose memory is read, in place of that of the process."""

    @property
    def device(self) -> int:
        """The number of the device."""

    @property
    def torch_device(self) -> str:
        """The name of the device in torch."""

    def snapshot(self) -> object:
        """Return the allocator's snapshot, as torch has it. It must not allocate on the device."""

    def statistics(self) -> Callable[[], object]:
        """Return the function that `native.start_memory_watch` calls. Best a function in C: Python
        code could be interrupted by a signal there."""

    def peak_reset(self) -> Callable[[], object] | str:
        """Return the function that resets the peaks, after it was seen to that the program sees
        them as if they were not reset. Or a sentence that says why that can't be."""


class TorchAllocator:
    """PyTorch's allocator of a device, once CUDA is initialised."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.torch_device = f"cuda:{device}"

    def snapshot(self) -> object:
        torch: Any = sys.modules["torch"]
        found: object = torch.cuda.memory._snapshot()
        return found

    def statistics(self) -> Callable[[], object]:
        torch: Any = sys.modules["torch"]
        ask: Callable[[], object] = functools.partial(torch._C._cuda_memoryStats, self.device)
        return ask

    def peak_reset(self) -> Callable[[], object] | str:
        torch: Any = sys.modules["torch"]
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            return f"the allocator {backend} does not count allocations as PyTorch's own does"
        reads, resets = (
            tuple(getattr(torch._C, name) for name in names if hasattr(torch._C, name))
            for names in (_READS, _RESETS)
        )
        if not native.hook_allocator_peaks(reads, resets):
            return "this build of Python or torch does not let calls of its statistics be hooked"
        return functools.partial(torch._C._cuda_resetPeakMemoryStats, self.device)


def torch_allocator() -> TorchAllocator | None:
    """Return the allocator of the calling thread's device; None while CUDA is not in use."""
    torch = torch_with_cuda()
    try:
        return None if torch is None else TorchAllocator(torch.cuda.current_device())
    except Exception:  # its CUDA has failed
        return None


class MemoryWatch(Watcher):
    """The watch on memory while one recording goes on.

    Args:
        find: says whose memory is read from the next step on; None for that of the process. It is
            asked again, by the thread that opens steps, until it knows of a device.
        budget: the share of time that readings may take; `math.inf`: all steps are read.
        oom_snapshot: save a snapshot of the allocator when there is no memory left for the first
            time.
        exact: make each phase's peak exact, where that can be: by resets, in all steps.
    """

    name = "memory"

    def __init__(
        self,
        find: Callable[[], AllocatorSource | None] = torch_allocator,
        budget: float = BUDGET,
        exact: bool = False,
        oom_snapshot: bool = True,
    ) -> None:
        self._find = find
        self._budget = budget
        self._exact = exact
        self._oom_snapshot = oom_snapshot
        self._not_exact: str | None = None  # why not
        self._fold: MemoryFold | None = None
        self._out_of_memory = OutOfMemoryLog()
        self._next_write_s = 0.0
        # Again by the thread that has it: a signal may be handled in the middle of it.
        self._lock = threading.RLock()
        self._looks = MemoryLooks(lambda: self.is_on, self._torch_device, self._allocated_bytes)
        self._undo: list[Callable[[], None]] = []

    def begin(self, recording: ActiveRecording) -> None:
        """Read memory from the next step on, and be told when there is none left."""
        super().begin(recording)
        native.call_before_step(self._look)
        out_of_memory.listen(self._ran_out)
        self._undo.append(when_imported("torch", out_of_memory.attach))
        self._undo.append(self._looks.begin())

    def end(self) -> None:
        undo_all(self._undo)
        if self._recording is not None:
            native.stop_memory_watch()
            self._looks.end()
            out_of_memory.listen(None)
        super().end()

    def write(self) -> None:
        with self._lock:
            super().write()

    def document(self) -> dict[str, Any]:
        fold = self._fold
        self._fold_readings()
        facts = {} if fold is None else fold.facts()
        held = self._looks.facts()
        if facts and held is not None:
            facts["held"] = held
        notes = list(self._notes())
        if facts or notes or self._out_of_memory.count:
            facts["lost"] = native.lost_memory_readings()
            facts["out_of_memory"] = self._out_of_memory.facts()
            facts["notes"] = notes
        return facts

    def _fold_readings(self) -> None:
        if self._fold is not None:
            readings = native.take_memory_readings()
            self._fold.add(readings)
            self._looks.add(readings)

    def _notes(self) -> Iterator[str]:
        if self._not_exact is not None:
            why = self._not_exact
            yield f"memory was sampled, because exact peaks are not available here: {why}"
        contended = native.contended_peak_resets()
        if contended:
            yield (
                f"at {contended:,} of the resets that exact peaks need, another thread may have "
                "used the allocator: what the program reads of its peaks may be too low there"
            )

    def _look(self) -> None:
        """See, between two steps, whose memory is to be read, and begin or begin anew."""
        if not self.is_on:
            return
        source = self._find()
        device = None if source is None else source.device
        if self._fold is not None and self._fold.device == device:
            return
        reset: Callable[[], object] | None = None
        if self._exact:
            found = _NO_PEAK_RESET if source is None else source.peak_reset()
            reset, self._not_exact = (None, found) if isinstance(found, str) else (found, None)
        torch: Any = sys.modules.get("torch")
        with self._lock:
            native.start_memory_watch(
                None if source is None else source.statistics(),
                self._take,
                budget=self._budget if reset is None else math.inf,
                reset=reset,
                device=-1 if device is None else device,
                next_node=getattr(getattr(torch, "autograd", None), "_get_sequence_nr", None),
            )
            if self._fold is not None:
                self._looks.forget()
            self._fold = MemoryFold(device)

    def _take(self) -> None:
        """Take the readings after a step, about once a second."""
        begin_s = time.monotonic()
        if begin_s < self._next_write_s:
            with self._lock:
                self._fold_readings()
            return
        self.write()
        if self._fold is not None:
            self._looks.note_peak(self._fold.peak_bytes)
        if self._fold is not None and self._fold.device is None:
            self._look()
        end_s = time.monotonic()
        pause_s = max(_SHORTEST_PAUSE_S, (end_s - begin_s) / _SHARE_OF_WRITING)
        self._next_write_s = end_s + pause_s

    def _torch_device(self) -> str:
        source = self._find()
        return "cpu" if source is None else source.torch_device

    def _allocated_bytes(self) -> int | None:
        source = self._find()
        return None if source is None else allocated_and_reserved(source.statistics())[0]

    def _ran_out(self, device: int, request: int, limit: int, free: int) -> None:
        """Note an out-of-memory error. The thread that gets the error calls this before it does."""
        if not self.is_on:
            return
        source = self._find()
        statistics = None if source is None else source.statistics()
        details = dict if source is None else functools.partial(self._details, source, device)
        if self._out_of_memory.add(device, request, limit, free, statistics, details):
            self.write()
            native.harvest()

    def _details(self, source: AllocatorSource, device: int) -> dict[str, Any]:
        """Return who holds the memory of the device that is read."""
        if source.device != device:
            return {}
        phases_of = functools.partial(saved_by_phase, native.open_step_memory_readings())
        found: dict[str, Any] = {"holders": holders_of(source.torch_device, phases_of)}
        path = None if self._recording is None else self._recording.path
        if self._oom_snapshot and path is not None:
            found["snapshot"] = save_snapshot(source.snapshot, path)
        return found


def watcher(options: Any) -> Watcher:
    return MemoryWatch(exact=options.memory == "exact", oom_snapshot=options.oom_snapshot)
