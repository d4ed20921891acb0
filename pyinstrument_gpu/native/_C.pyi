"""The interface of the native module: everything Python may ask of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeVar, final

_T = TypeVar("_T")
_StepBlock = TypeVar("_StepBlock", bound="StepBlock")
_F = TypeVar("_F", bound=Callable[..., Any])

@final
class Phase:
    """The cached handle of one phase name: context manager, decorator, begin()/end()."""

    @property
    def name(self) -> str: ...
    def __enter__(self) -> Phase: ...
    def __exit__(self, exc_type: object, exc: object, traceback: object, /) -> None: ...
    def __call__(self, function: _F, /) -> _F: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...

@final
class Scope:
    """A context manager that closes exactly the span it opened."""

    @property
    def name(self) -> str: ...
    def __enter__(self) -> Scope: ...
    def __exit__(self, exc_type: object, exc: object, traceback: object, /) -> None: ...

@final
class _GpuPhase:
    def __call__(self, name: str, /) -> Phase: ...
    def scope(self, name: str, /) -> Scope: ...

gpu_phase: _GpuPhase

@final
class Frame:
    """One use of a phase: open as soon as it is made, and closed at the end of its `with` block, or
    as it is freed."""

    def __call__(self, *args: object) -> Frame | None: ...
    def __enter__(self) -> Frame: ...
    def __exit__(self, exc_type: object, exc: object, traceback: object, /) -> None: ...

def frame(phase: Phase, /) -> Frame: ...

# Automatic phases and steps (csrc/auto). `kind` says what a call of the function means.
def begin_loop(
    *,
    loss_type: type,
    is_grad_enabled: Callable[[], bool],
    has_parameters: Callable[[Any], bool],
    samples_of: Callable[[Any], float],
    loader_options: Callable[[Any], tuple[object, ...] | None],
    times_written: Callable[[Any], int],
    is_trained_in_eval_mode: Callable[[Any], bool],
    are_of_one_iteration: Callable[[CodeType, int, int], bool],
    note_line: Callable[[str], None],
    main_thread: int,
    on_step_end: Callable[[], None] | None,
) -> None: ...
def observe_calls(function: object, kind: str) -> bool: ...
def note_metric_type(type: type, /) -> None:
    """Note a class of modules whose calls are metrics, in all loops from now on."""

def end_loop() -> None: ...
def end_open_step() -> None: ...
def leave_steps_alone() -> None: ...

# How loaders with the same options were used since it was last forgotten: the options, about how
# many items fed steps that were placed automatically, and how many were asked for with gradients
# enabled where the program opens its steps itself.
def loader_uses() -> list[tuple[tuple[object, ...], int, int]]: ...
def forget_loader_uses() -> None: ...
def loop_passes_by() -> bool: ...
def loop_has_failed() -> bool: ...
def optimizer_seen() -> bool | None: ...
def optimizer_steps(optimizer: object, args: object, kwargs: object, /) -> None: ...
def optimizer_has_stepped(optimizer: object, args: object, kwargs: object, /) -> None: ...

# A copy to a device is told by Python.
def begin_copy(phase: Phase) -> int: ...
def end_copy(phase: Phase, token: int) -> None: ...

# Steps that the program opens.
class StepBlock:
    """A context manager that makes its block a step; the base of `gpu_step`."""

    @property
    def _samples(self) -> float:
        """NaN: unknown."""

    @_samples.setter
    def _samples(self, samples: float) -> None: ...
    def __enter__(self: _StepBlock) -> _StepBlock: ...
    def __exit__(self, exc_type: object, exc: object, traceback: object, /) -> None: ...

def iterate_steps(
    iterable: Iterable[_T],
    accumulate: int,
    samples: float | Callable[[_T], float],
    drawn: list[int],
    reads_batches: bool,
    /,
) -> Iterator[_T]:
    """The iterator of `gpu_steps`. NaN samples are unknown. Items drawn for steps of the recording
    are counted in `drawn[0]`. If it reads batches, these tell their tokens."""

def set_before_step(function: Callable[[], None] | None) -> None:
    """Have a function called before the program opens a step. What it raises, the step raises."""

def count_no_memory() -> None:
    """Count, in the recording that is active, something that there was no memory for."""

def call_before_step(function: Callable[[], None], *, after: int = 0) -> None:
    """Have a function called once, between two steps, by the thread that begins the step of a
    recording which comes after so many others. What it raises is reported as unraisable. It may ask
    for another call."""

def set_profiled(profiled: bool) -> int:
    """Count the steps that begin from now on apart from others, because they are slower; or no
    more, after the open one. Between two steps. Returns the index of the next step."""

# Times of modules.
def observe_modules(
    *,
    call: object,
    run_backward: object,
    grad_fn: object,
    mode_count: object,
    without_modes: object,
) -> bool:
    """Observe the calls of modules and backward passes. False where that is not possible."""

def unobserve_modules() -> None: ...
def set_root_function(function: Callable[[Any], bool] | None) -> None:
    """Have a function called with each module that is called while no other call is observed, until
    it returns True for it, while a recording is active."""

def watch_module(module: object, name: str, parent: int) -> int:
    """Time a module's calls. `parent` is the number of the innermost one around it, or -1. Returns
    its number."""

def module_mark(number: int, enters: bool) -> Any:
    """The hooks of a mark on a node: a backward pass enters or leaves the module. There are none
    from where compiled autograd is on."""

def set_module_marks(number: int, enter: object, leave: object) -> None:
    """The tensors whose hooks are the module's marks."""

def is_backward_compiled() -> bool:
    """Whether a backward pass has begun with compiled autograd on: there are no marks since."""

def unwatch_module(number: int) -> None: ...
def was_module_called(number: int) -> bool:
    """Whether it was, while a recording was active, in whatever step."""

def sample_modules(every: int) -> None:
    """Time modules in one of every so many steps, from the next one on; 0: as often as they may
    cost."""

# Calls of the graphs that torch.compile has made.
def begin_graph(phase: Phase) -> int:
    """The calling thread begins a call of a graph, which is a phase. Returns its number, for its
    end, which has to come on the same thread."""

def end_graph(graph: int) -> None:
    """The call has ended, and with it what marks inside it have begun."""

def graph_mark(*names: str) -> Callable[[], None]:
    """What tells the graph that the calling thread is in of which phases its next kernels are, the
    outermost first. Outside of a graph it does nothing."""

# Metrics of tensors.
class MetricAccumulator:
    """The host's side of an accumulator. Tensors are of torch; the state is one of uint8.

    Updates return whether a reading should be written into the recording; None where they were not
    done: because of a tensor that Python has to look at, because no kernel could be launched, or
    because an addition by other means is under way.
    """

    def __init__(
        self,
        *,
        counts: Sequence[int] | None,
        topk: Sequence[int],
        num_classes: int,
        confusion: bool,
        ignore_index: int,
        class_dim: int,
        ema: float | None,
        cross_entropy: bool,
        label_smoothing: float,
        class_weight: Sequence[float],
        class_weight_sum: float,
    ) -> None:
        """`counts` as `counts()` gives them, of the state at first."""

    def update(
        self, state: Any, scratch: Any, logits: Any, target: Any, loss: Any, weight: Any
    ) -> bool | None:
        """Add a batch. Releases the GIL on a GPU, and where it takes long.

        `scratch` is needed on a GPU: a tensor of METRIC_SCRATCH_BYTES, zeros at first.
        """

    def update_scalar(
        self, state: Any, scratch: Any, slot: int, value: Any, weight: Any
    ) -> bool | None: ...
    def update_rows(
        self,
        state: Any,
        scratch: Any,
        loss: Any,
        correct: Any,
        rank: Any,
        entropy: Any,
        weight: Any,
        mask: Any,
    ) -> bool | None: ...
    def read(self, state: Any) -> tuple[bytes, int] | None:
        """The newest state that is available without waiting, and how many updates the device has
        lost; None where there is none, and in host memory while an addition by other means is under
        way. It lacks the confusion matrix of many classes."""

    def copy(self, state: Any, into: Any) -> bool:
        """Copy the whole state in host memory into a buffer of its size. False if it is elsewhere,
        and while an addition by other means is under way."""

    def reset(self, state: Any) -> int | None:
        """Clear the state in host memory, and return the number of its newest update. None if it is
        elsewhere, and while an addition by other means is under way."""

    def launch_error(self) -> str:
        """Why no kernel can be launched any more, or empty."""

    def was_captured(self) -> bool:
        """Whether a launch was captured into a graph."""

    def begin_other(self) -> None:
        """An addition by other means begins, of which there is one at a time: until it ends nothing
        else is added. Waits, without the GIL, for a launch that is under way."""

    def end_other(self, state: Any, added: bool, slot: int | None, is_counted: bool) -> None:
        """It has ended, and has added the running value of a slot, an update, or nothing.
        `is_counted`: the state has what was added once, for certain."""

    def replace_counts(self, counts: Sequence[int] | None) -> None:
        """The state has been replaced, during an addition by other means: it has counts as
        `counts()` gives them; None where the host does not know. No step of before is known."""

    def reset_scalars(self) -> None:
        """All running values have no numbers any more."""

    def counts(self) -> list[int] | None:
        """How many updates, and numbers of each running value, there are. None where the device may
        count differently, as in replays of a graph."""

    def take_news(self) -> int:
        """The number of the active recording, if anything was added during it since this was last
        asked; 0 otherwise."""

    def step_of(self, update: int) -> tuple[int, int] | None:
        """Serial number and index of the step that an update was made in."""

    def step_of_scalar(self, slot: int, number: int) -> tuple[int, int] | None:
        """The same for a number of a running value, counted from the reset."""

METRIC_SCRATCH_BYTES: int
METRIC_SCRATCH_LOST_WORD: int
"""In words of 8 bytes: where the device counts the updates that it could not add."""

def set_torch(
    tensor_type: Any,
    exchange_api: Any,
    get_num_threads: Callable[[], int],
    record_stream: Callable[[Any, Any], None],
) -> bool:
    """Hand over what is needed of torch. False where its exchange API is of a kind not known.

    `record_stream` is called with a state and its scratch when the current stream uses them and the
    last one to do so was another.
    """

def metric_kernel_texts() -> list[tuple[str, str]]:
    """Name and text of the kernels' CUDA source, then of the headers that it includes."""

def is_capturing(tensor: Any) -> bool | None:
    """Whether the current stream on the tensor's device is being captured into a CUDA graph. None
    where that is not known here, as without CUDA or for a tensor subclass."""

def compute_capability(device: int) -> int:
    """That of a CUDA device, as 90 for 9.0. PyTorch would ask the driver with the GIL, which may
    take long. Raises RuntimeError where it is unavailable."""

def load_metric_kernels(device: int, code: bytes) -> None:
    """Have a native thread load compiled kernels for a device."""

def fail_metric_kernels(device: int, reason: str) -> None:
    """Say that there are none for a device, and why."""

def wait_for_metric_kernels(timeout_s: float) -> bool:
    """Wait until no kernels are being loaded. False when that takes longer."""

def append_reading(update: int, values: Sequence[tuple[str, float, int | None]]) -> None:
    """Write a reading into the active recording: names, values and the serial numbers of the steps
    in which they were updated. Never blocks."""

def add_to_step(name: str, value: float) -> None:
    """Add to a number of the open step, which is the metric `step/NAME` of the run; NaN: it is not
    known of this step. The name ends with the unit, as `gc_ns` does, unless it counts what it
    names. Nothing while no step is open. Whatever shows or exports metrics has one value for each
    step; in a long run for every second, fourth and so on."""

def watch_run_queue(path: bytes, groups: Sequence[bytes] = ()) -> None:
    """From now on until the recording ends, steps have the reading `step/processor_wait_ns`: for
    how long their thread waited for a processor. Long steps have it in the log of causes, unless
    they were chosen for a reading, and for how long a CPU limit stopped the process.

    Args:
        path: of the file that has this for the thread that opens it (`schedstat`).
        groups: of the files `cpu.stat` of the control groups that the process is in.
    """

# Waits of the host for a device. A site is a place in the program.
def sync_site(file: str, line: int, function: str, kind: int) -> int | None:
    """Make a site and return its number; None when there are too many. Outlasts recordings."""

def sync_begin() -> int:
    """The moment at which a wait begins, in ticks."""

def sync_end(site: int, begin: int | None, bytes: int) -> None:
    """Record a wait that ends now; with `begin` None, one of unknown price."""

def sync_watch(on: bool, as_if: bool) -> None:
    """From now on, or no longer, each wait that can be seen is recorded in the active recording."""

def sync_placed() -> None:
    """The active recording is told that something was placed on the device of a preview."""

# Hooks of calls of torch, below its Python objects. A listener is a pair: `enter(args, kwargs)` is
# called before the function, with kwargs None where there are none, and returns a token, or None
# where the call is of no interest; then `leave(token, args, succeeded)` is called after it. Errors
# in them are dropped. Most calls are passed through without calling a listener, those of
# which it can be told quickly that they touch no tensor on a device.
def look_at_torch(
    *,
    tensor: type,
    parameter: type,
    on_host: Any,
    on_meta: Any,
    compiler_names: dict[str, Any],
    graph_task_id: Callable[[], int],
) -> bool:
    """Learn to tell where a tensor lies, from one of each device, and what torch is doing. Before
    anything is hooked. False where the first can't be done: listeners then get all calls."""

def hook_subscripts(
    base: type,
    quick_check: int,
    *,
    enter_get: Callable[[Any, Any], Any],
    enter_set: Callable[[Any, Any], Any],
    leave: Callable[[Any, Any, bool], object],
) -> bool:
    """Listen to indexing of the tensors of a class. False where it can't be hooked."""

def hook_call(
    function: object,
    quick_check: int,
    *,
    enter: Callable[[Any, Any], Any],
    leave: Callable[[Any, Any, bool], object],
    from_c: bool = False,
) -> bool:
    """Listen to the calls of a method in C, as it stands in its class, of a builtin function, or of
    one in Python that a slot of a type calls. `quick_check` is how to tell that a call touches no
    device (csrc/hooks/call_listener.h). `from_c`: one in Python, whose type stays; on Python 3.11
    it is observed only where a slot of a type calls it, or `function(*args)`. False where it can't
    be hooked."""

def unhook(leave: Callable[[Any, Any, bool], object]) -> None:
    """Take all hooks of the listeners with this `leave` back."""

# Whether the calling thread is in a call inside which no listener is called.
def in_watched_call() -> bool: ...
def set_in_watched_call(on: bool, /) -> None: ...

# The one recording of the process.
def start(
    recording: object,
    path: bytes | None,
    environment: bytes,
    *,
    overwrite: bool,
    history_spans: int,
    max_bytes: int,
    nvtx: bool,
    watchdog_ns: int,
) -> dict[str, Any] | None:
    """Start recording, as the recording of this object, which is its owner until `release`. Return
    the run's id, the clock and its first anchor; None if another object is the owner.

    Raises:
        OSError: the file can't be written (FileExistsError, ...), or no thread can be started.
    """

# For an object that is not the owner these do nothing.
def stop(recording: object, environment: bytes | None) -> tuple[str | None, bytes] | None:
    """Stop, drain and finish the log. Releases the GIL while it does. Return what ended the
    writing of history, or None, and `log_bytes`: the same until it is released. With None for the
    environment its last version stands. After a MemoryError it has stopped, and can be asked again
    for what it returns."""

def release(recording: object) -> None: ...
def owner() -> Any: ...
def owner_is_left_over() -> bool:
    """Whether it was started by a `with` block of this thread that is certainly over."""

def harvest() -> None:
    """Drain every thread's ring and bring the log up to date. The CUDA driver is asked by another
    thread; if it blocks, this goes on without it after a second. Releases the GIL while it does."""

def flush(timeout_s: float) -> bool:
    """The same, and wait at most so long, but for a tenth of a second at least, for device times
    that are outstanding. Returns whether none is."""

def log_bytes(recording: object) -> bytes | None:
    """The log of a recording without a path, as a run file. Of one whose file failed: all but the
    history."""

# Subscriptions: what goes to the log, for readers in this process.
def open_subscription(recording: object) -> int:
    """Returns the number of the subscription; 0 for an object that is not the owner."""

def take_subscription(recording: object, number: int) -> bytes:
    """What is new since the last call, also once after `stop`: records of `type u4, bytes u4,
    first u8`, then the payload of a log's items or of a document (docs/run-file.md). Of more
    history than 4 MiB the newer part is left out. Releases the GIL."""

def close_subscription(recording: object, number: int) -> None: ...
def set_document(recording: object, name: str, json: bytes) -> None:
    """The new version of a document, a JSON object, to be written by the recorder's thread: never
    waits for a disk. "environment", "operations", "memory", "energy" and "collective_groups" have
    blocks of their own; under any other name it is a member of the block ASPECTS.

    Raises ValueError if the name has other characters than small letters, digits and underscores.
    """

def append_collectives(recording: object, items: bytes) -> int:
    """Adds items of the log of collectives (docs/run-file.md). Returns for how many there was room,
    the first ones; 0 where the recording is not the owner."""

def add_cause(kind: int, begin_ns: int, end_ns: int, note: int = 0) -> None:
    """A time in which something was at work on the calling thread that may make steps slow, by the
    run's clock. `kind` is of `CauseKind` (csrc/log/items.h), and says what `note` means. Nothing
    where no recording is active."""

def add_cause_to_step(kind: int, time_ns: int) -> None:
    """The same where it is too short, or not known when: adds to the sum of the open step."""

def watch_host(pressure: bytes) -> None:
    """From now on until the recording ends, page faults of the threads of steps are in the log of
    causes, and stalls by memory in long steps. Takes a millisecond, to learn what a fault costs.

    Args:
        pressure: the file with the stalls that memory has caused; empty: none.
    """

def watch_gil(threads: bytes) -> bool:
    """The same for waits for the GIL in long steps, after `watch_host`. False where it can't be
    found out at which address threads sleep that wait for it. Takes half a millisecond; on a busy
    machine up to a tenth of a second.

    Args:
        threads: the folder of the threads of the process in `/proc`.
    """

def start_stacks(main_thread: int, own_folder: bytes, by_itself: bool = True) -> bool:
    """From now on until `stop_stacks`, or until the recording ends, samples of the main thread's
    Python stack are taken. False where that can't be: without a GIL, without a recording, without
    room for a thread, or, from Python 3.13 on, in a process that another thread than the main one
    has forked.

    Args:
        main_thread: its `ident`.
        own_folder: code of files that begin with this is left out.
        by_itself: whether samples are taken by a thread of their own.
    """

def sample_stack() -> None:
    """Takes a sample now, which stands for the time since the one before."""

def stacks() -> dict[str, Any]:
    """What was sampled: "places", each a code object and a line; "nodes", each with the number of
    the one around it (minus one minus a scope for a phase), its place (the path of a phase, -1 for
    none), how many samples it has of its own, and their time in ns; "begin_ns" and "until_ns", from
    when to when samples were taken; "stopped_ns", for how long they have stopped the thread;
    "lost_ns", the time of those that had no room; and "rested_ns", that for which no sample
    stands."""

def stop_stacks() -> None:
    """Ends sampling and forgets what was sampled."""

def on_collection(phase: object, info: object, /) -> None:
    """One of `gc.callbacks`: notes each collection of the recording that is active."""

def newest_stall() -> tuple[int, str] | None:
    """The number of the newest stall of the active recording, and a sentence on it."""

def set_stall_program(command: Sequence[bytes], environment: Sequence[bytes]) -> None:
    """What the watchdog starts in a process of its own, without the GIL; nothing if it is empty."""

def answer_stall(number: int, answer: bytes) -> bool:
    """What is known of a stall, as a JSON object. Returns whether it is for the caller to tell the
    user: it is told once."""

def withdraw_stall(number: int) -> None:
    """The stall is none: the program has moved since."""

def read_clocks() -> tuple[int, int]:
    """The clock of the active recording and that of the wall, in ns, read together."""

def status() -> dict[str, Any]:
    """`{"recording": bool, "error": str | None}`; error is what ended the writing of history."""

# Memory at the boundaries of phases and steps.
def start_memory_watch(
    source: Callable[[], object] | None,
    take: Callable[[], object],
    *,
    budget: float,
    reset: Callable[[], object] | None = None,
    device: int = -1,
    next_node: Callable[[], object] | None = None,
) -> None:
    """Read memory at the boundaries of the phases of the thread that opens steps, in so many steps
    that it takes at most a share of `budget` of all time; the first three in any
    case. A source returns what `torch._C._cuda_memoryStats` does; None stands for the memory of the
    process. `take` is called after a step, at most once a second while readings wait, and sooner if
    they are many. `reset` resets the peaks of the device's allocator at each boundary;
    `hook_allocator_peaks` comes first. `next_node` returns what autograd numbers the next node."""

def hook_allocator_peaks(
    reads: tuple[Callable[[int], object], ...], resets: tuple[Callable[[int], object], ...]
) -> bool:
    """Have the program see the peaks of the allocator's statistics as if only itself reset them:
    in the results of `reads`, functions of a device's number, until it calls one of `resets`. For
    good. False if one of them can't be hooked. Calling it again does nothing."""

def stop_memory_watch() -> None:
    """Read no more. Calling it again does nothing."""

def take_memory_readings() -> list[tuple[int, ...]]:
    """The readings of steps that have ended, each once: kind (0 begin of the step, 1 begin and 2
    end of a phase, 3 end of the step, 4 the program has reset the peaks), serial number of the
    step, path, depth, then allocated bytes, their peak, reserved bytes and their peak, -1 where not
    known, and where the peak of the allocated bytes stood after the reading, 2**63 - 1 where that
    is not known, how often the allocator had to give memory back to the driver to get some, and
    what autograd numbers the next node, -1 where not known."""

def open_step_memory_readings() -> list[tuple[int, ...]]:
    """The same of the step that is open, as far as it has come. Empty if it is not read."""

def lost_memory_readings() -> int:
    """How many readings, or steps to be read, were lost."""

def contended_peak_resets() -> int:
    """At how many resets of the peaks memory was allocated or freed at the same time, or may have
    been: then the peaks that the program sees may be too low."""

def open_place() -> tuple[int, int, str | None]:
    """The innermost open path of the calling thread, or else of the thread that opened the step,
    and the index of the open step, -1 for none; then the watched module that the calling thread is
    in, forward or backward, or None."""

# Device timing. Started with a recording; attached once PyTorch has initialised CUDA.
def start_device_timing(
    *, budget: float, share_boundaries_ns: int, all_side_streams: bool, graph_nodes: int
) -> None: ...
def attach_device(exchange_api: object) -> bool:
    """Take the current stream from `torch.Tensor.__dlpack_c_exchange_api__` (or None, of an older
    torch). Returns whether there is a way. Loads the CUDA driver at the first call, and makes the
    calling thread's current device ready (some milliseconds, once)."""

# Captured graphs, as the hooks of torch.cuda.CUDAGraph see them.
def prepare_graph_capture() -> None:
    """Get what marks in the graph need that is captured next. Milliseconds, the first time."""

def call_in_relaxed_mode(function: Callable[[], _T]) -> _T:
    """Call it in CUDA's relaxed capture mode, in which what it asks a device for breaks no capture,
    on any thread."""

def graph_capture_begins() -> tuple[int, int] | None:
    """The current stream is being captured; None where that will have no marks. Phases are timed in
    any case until `graph_capture_ends`."""

def graph_capture_ends(capture: tuple[int, int], *, succeeded: bool) -> int | None:
    """Return the number of the graph, by which its replays are noted; None where it has no mark."""

def graph_replay_begins(graph: int) -> bool:
    """It is about to be replayed. Needed also while nothing is recorded: replays are counted. False
    during the capture of another graph, of which it becomes a part."""

def graph_replay_failed(graph: int) -> None:
    """The call has failed, before or after its launch."""

def devices_in_use() -> int:
    """On how many devices the process has a primary context; 0 where that was not asked, as where
    the device is not timed."""

def device_warnings() -> list[str]:
    """What the user should be told, each once."""

class Scratch:
    """A block in which the calling thread records where nobody reads."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...

def disable() -> None:
    """No NVTX ranges, and no error for too many names: with PYINSTRUMENT_GPU=0 nothing matters."""

def set_nvtx(enabled: bool) -> None: ...
def set_hooks(
    *,
    decorate: Callable[[Phase, Callable[..., Any]], Callable[..., Any]],
    thread_name: Callable[[], str],
    history_stopped: Callable[[], None],
    device_warnings: Callable[[], None],
    device_probe: Callable[[], None],
    program_facts: Callable[[], None],
    stall: Callable[[], None],
    statement: Callable[[Any, int], str | None],
    phase_name_error: type[Exception],
) -> None: ...
