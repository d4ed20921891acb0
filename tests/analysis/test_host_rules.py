# SPDX-License-Identifier: Apache-2.0
"""What rules say of programs that train on the CPU: workers of loaders, optimizers and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding, faster_loading
from pyinstrument_gpu.analysis.loader_replay import LoaderModel, Prediction, Processors
from pyinstrument_gpu.analysis.rules import findings
from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention
from pyinstrument_gpu.aspects.loader.data import Loader, Loaders, WorkerTimes
from pyinstrument_gpu.aspects.setup_calls.data import CollateFunction, SetupCall, SetupCalls
from pyinstrument_gpu.aspects.stacks.data import StackNode, Stacks
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.core.step_values import ELEMENTS, ELEMENTS_WITHOUT_PADDING
from tests.helpers.made_script import WatchedScript
from tests.helpers.timed_runs import made_run, with_waits

MS = 1_000_000
SECOND = 1_000_000_000


def found(run: Run, advice: str) -> list[Finding]:
    return [one for one in findings(run) if one.about.startswith(advice)]


def with_model(wait_ns: int, making_ns: int, gpus: Sequence[str] = (), busy: float = 0.0) -> Run:
    """A run whose loop waits so long for a batch, which a worker makes in so much time."""
    count = 40
    facts: dict[str, Any] = {KEY: {"loader_workers": 1}, "gpus": list(gpus)}
    run = with_waits(made_run([10 * MS] * count, **facts), busy)
    analysis.of(run).__dict__["loader_model"] = LoaderModel(
        making_ns=np.full(count, making_ns),
        using_ns=np.full(count, 10 * MS - wait_ns),
        handing_ns=np.full(count, wait_ns),
        workers=1,
        prefetch=2,
        processors=Processors(2),
        wait_ns=float(wait_ns),
    )
    return run


def test_batches_that_are_made_sooner_than_handed_over_are_made_by_the_loop() -> None:
    (one,) = found(with_model(4 * MS, MS), "load batches in the loop itself")
    assert (one.low_ns, one.high_ns, one.of_ns) == (3 * MS, 3 * MS, 10 * MS)
    assert one.edit == "DataLoader(num_workers=0)"
    assert not found(with_model(4 * MS, 5 * MS), "load batches in the loop itself")
    busy = with_model(4 * MS, MS, busy=0.5)
    assert [one.low_ns for one in found(busy, "load batches in the loop")] == [1.5 * MS]


def waiting_for_a_worker(making_ms: int, **environment: Any) -> Run:
    """A run of steps of 10 ms, of which the loop waits 9 for a batch. One worker makes it in so
    many milliseconds, of which it computes for none."""
    program = WatchedScript()
    for _ in range(40):
        with program.step():
            program.leaf("data", 9 * MS)
            program.leaf("forward", MS)
    facts = {"gpus": [], "cores": 2, KEY: {"loader_workers": 1}}
    run = program.run(environment=facts | environment)
    count = 40
    analysis.of(run).__dict__["loader_model"] = LoaderModel(
        making_ns=np.full(count, making_ms * MS),
        using_ns=np.full(count, MS),
        handing_ns=np.zeros(count, np.int64),
        workers=1,
        prefetch=2,
        processors=Processors(2),
        wait_ns=9.0 * MS,
    )
    predictions = [Prediction(f"{n} workers", n, 4 * MS, 3 * MS, 5 * MS) for n in (2, 4)]
    analysis.of(run).__dict__["loader_predictions"] = tuple(predictions)
    return run


def test_more_workers_are_priced_by_the_replay_of_batches_alone() -> None:
    run = waiting_for_a_worker(10)
    loader = SetupCall(kind="loader", call="DataLoader", file="a.py", line=5)
    run.setup_calls = SetupCalls((loader,))
    (one,) = found(run, "use more loader workers")
    assert (one.low_ns, one.high_ns) == (4 * MS, 6 * MS)
    assert one.edit == "DataLoader(num_workers=2) at a.py:5"
    # A replay that does not explain the run says nothing, and neither does one beside a GPU.
    for run in (waiting_for_a_worker(5), waiting_for_a_worker(10, gpus=["a GPU"])):
        assert [one.edit for one in found(run, "use more loader workers")] == [None]


def test_beside_a_gpu_the_loop_is_not_told_to_make_its_batches() -> None:
    run = with_model(4 * MS, MS, gpus=["a GPU"])
    assert not found(run, "load batches in the loop itself")


def epochs(count: int, workers: int, is_kept: bool | None = False) -> Run:
    """So many epochs of five steps, before each of which workers start, and end behind it."""
    program = WatchedScript()
    for _ in range(count):
        program.leaf("data start", 100 * MS)
        for _ in range(5):
            with program.step():
                program.leaf("data", 2 * MS)
                program.leaf("forward", 8 * MS)
        program.leaf("data end", 20 * MS)
    facts = {"loader_workers": workers, "loader_persistent": is_kept}
    return program.run(environment={"gpus": [], KEY: facts})


def test_workers_are_kept_where_they_are_started_again_and_again() -> None:
    (one,) = found(epochs(4, workers=2), "keep the loader's workers")
    assert one.low_ns is not None and one.high_ns is not None
    # Three starts and three ends; half of it is certain. The first waits may be theirs, too.
    assert one.low_ns * 20 == pytest.approx(3 * 120 * MS / 2)
    assert 3 * 120 * MS <= one.high_ns * 20 <= 3 * 122 * MS + 1
    assert one.edit == "DataLoader(persistent_workers=True)"
    assert not found(epochs(1, workers=2), "keep the loader's workers")
    assert not found(epochs(4, workers=0), "keep the loader's workers")
    for is_kept in (True, None):
        assert not found(epochs(4, 2, is_kept), "keep the loader's workers")


def sampled(
    phase: str, function: tuple[str, str], seen: int, other: int, **environment: Any
) -> Run:
    """A run of which half is in a phase, and samples of that are in a function, or not."""
    run = made_run([10 * MS] * 20, {phase: 0.5}, **{"gpus": [], **environment})
    samples = [StackNode(0, place, count, count * MS) for place, count in ((0, seen), (1, other))]
    run.stacks = Stacks(
        is_sampled=True,
        functions=(function, ("a.py", "main")),
        places=((0, 1), (1, 2)),
        nodes=(StackNode(-1, 0, 0, 0), *samples),
        paths=(phase,),
    )
    return run


ADAM = "/v/site-packages/torch/optim/adam.py", "_single_tensor_adam"
SPREAD = 2 * (0.75 * 0.25 / 40) ** 0.5  # of a share of three quarters of 40 samples


def test_an_optimizer_that_goes_over_its_parameters_one_by_one_is_fused() -> None:
    (one,) = found(sampled("optimizer", ADAM, 30, 10), "use a fused optimizer")
    assert one.low_ns == pytest.approx(0.25 * (0.75 - SPREAD) * 5 * MS)
    assert one.high_ns == pytest.approx((0.75 + SPREAD) * 5 * MS)
    assert one.edit == "fused=True for the optimizer"
    assert not found(sampled("optimizer", ADAM, 0, 40), "use a fused optimizer")
    assert not found(sampled("optimizer", ADAM, 10, 5), "use a fused optimizer")  # too few to tell
    with_gpu = sampled("optimizer", ADAM, 30, 10, gpus=["a GPU"])
    assert not found(with_gpu, "use a fused optimizer")


@pytest.mark.parametrize("name", ["sgd", "adamax"])
def test_a_fused_optimizer_that_may_be_slower_or_is_not_there_is_not_advised(name: str) -> None:
    function = f"/v/torch/optim/{name}.py", f"_single_tensor_{name}"
    assert not found(sampled("optimizer", function, 30, 10), "use a fused optimizer")


def test_an_edit_has_the_line_of_the_call_that_it_is_of() -> None:
    run = sampled("optimizer", ADAM, 30, 10)
    validation = SetupCall(kind="loader", call="DataLoader", file="a.py", line=4)
    training = SetupCall(kind="loader", call="DataLoader", file="a.py", line=5, is_shuffled=True)
    adam = SetupCall(kind="optimizer", call="Adam", file="a.py", line=7, dtypes=("float32",))
    run.setup_calls = SetupCalls((validation, training, adam))
    (one,) = found(run, "use a fused optimizer")
    assert one.edit == "fused=True for the optimizer at a.py:7"
    assert faster_loading(run).startswith("in the DataLoader at a.py:5, raise num_workers")
    # Of two optimizers it can't be told which is meant.
    run = sampled("optimizer", ADAM, 30, 10)
    run.setup_calls = SetupCalls((adam, SetupCall(kind="optimizer", call="SGD", file="a", line=9)))
    (one,) = found(run, "use a fused optimizer")
    assert one.edit == "fused=True for the optimizer"


def test_as_many_workers_as_processors_are_not_told_to_become_more() -> None:
    facts: dict[str, Any] = {KEY: {"loader_workers": 16}, "cores": 16}
    assert "num_workers" not in faster_loading(made_run([10 * MS] * 20, **facts))
    assert "num_workers" in faster_loading(made_run([10 * MS] * 20, **facts | {"cores": 17}))


TRACES = "/v/site-packages/torch/fx/traceback.py", "format_stack"


def test_the_stack_traces_of_anomaly_detection_are_priced() -> None:
    run = sampled("forward", TRACES, 30, 10)
    mode = SetupCall(kind="anomaly", call="set_detect_anomaly", file="a.py", line=3)
    run.setup_calls = SetupCalls((mode,))
    (one,) = found(run, "switch the detection of anomalies off")
    assert one.low_ns == pytest.approx((0.75 - SPREAD) * 5 * MS)
    assert one.high_ns == pytest.approx((0.75 + SPREAD) * 5 * MS)
    assert one.edit == "remove set_detect_anomaly at a.py:3"
    beside = sampled("forward", TRACES, 30, 10, gpus=["a GPU"])
    beside.setup_calls = run.setup_calls
    assert [
        one.low_ns for one in found(beside, "switch the detection") if one.high_ns is not None
    ] == [0]
    for samples in ((1, 2), (0, 40)):  # too few, and none: it may be off in steps
        unknown = sampled("forward", TRACES, *samples)
        unknown.setup_calls = run.setup_calls
        assert not found(unknown, "switch the detection")
    # Without the call it is something of torch's own, such as a compilation.
    assert not found(sampled("forward", TRACES, 30, 10), "switch the detection")


def test_a_graph_of_the_backward_pass_is_named_with_what_it_may_cost() -> None:
    keeping = SetupCall(kind="backward", call="backward(create_graph=True)", file="a.py", line=9)
    run = sampled("backward", TRACES, 0, 40)
    run.setup_calls = SetupCalls((keeping,))
    (one,) = found(run, "take the backward pass without a graph")
    assert one.low_ns == 0
    assert one.high_ns == pytest.approx(0.6 * 5 * MS)
    assert one.edit == (
        "leave out create_graph=True at a.py:9, unless you differentiate the gradients"
    )
    beside = sampled("backward", TRACES, 0, 40, gpus=["a GPU"])
    beside.setup_calls = run.setup_calls
    assert all(one.low_ns in (0, None) for one in found(beside, "take the backward pass"))
    assert not found(sampled("backward", TRACES, 0, 40), "take the backward pass")


def test_double_precision_is_named_with_what_it_may_cost() -> None:
    run = sampled("forward", TRACES, 0, 40)
    adam = SetupCall(kind="optimizer", call="Adam", file="a.py", line=7, dtypes=("float64",))
    run.setup_calls = SetupCalls((adam,))
    (one,) = found(run, "use single precision")
    assert one.low_ns == 0
    assert one.high_ns == pytest.approx(0.6 * 5 * MS)
    assert one.evidence.startswith("the parameters of Adam at a.py:7 are float64")
    assert one.edit == "make the model and its inputs float32, by .float()"
    array = SetupCall(kind="doubles", call="torch.from_numpy", file="a.py", line=5)
    run = sampled("forward", TRACES, 0, 40)
    run.setup_calls = SetupCalls((adam, array))
    (one,) = found(run, "use single precision")
    made = "make the model and what torch.from_numpy makes at a.py:5 float32, by .float()"
    assert one.edit == made
    sgd = SetupCall(kind="optimizer", call="SGD", file="a.py", line=8, dtypes=("float32",))
    mixed = SetupCall(
        kind="optimizer", call="SGD", file="a.py", line=8, dtypes=("float32", "float64")
    )
    for calls in ((), (sgd,), (mixed,), (adam, sgd)):
        run = sampled("forward", TRACES, 0, 40)
        run.setup_calls = SetupCalls(calls)
        assert not found(run, "use single precision")


def test_autocast_of_small_layers_on_a_cpu_may_cost_more_than_it_saves() -> None:
    on = SetupCall(kind="autocast", call="autocast", file="a.py", line=12)

    def of(matrices: int, elements: int, **environment: Any) -> list[Finding]:
        run = sampled("forward", TRACES, 0, 40, **environment)
        adam = SetupCall(
            kind="optimizer", call="SGD", file="a.py", line=7, matrices=matrices, elements=elements
        )
        run.setup_calls = SetupCalls((adam, on))
        return found(run, "compute without autocast")

    (one,) = of(2, 2 * 48 * 48)
    assert one.low_ns == 0
    assert one.high_ns == pytest.approx(0.6 * 5 * MS)
    assert one.edit == "remove autocast at a.py:12, or try with enabled=False"
    assert not of(2, 2 * 512 * 512)
    assert not of(0, 0)
    assert not of(2, 2 * 48 * 48, gpus=["a GPU"])


@pytest.mark.parametrize(
    ("batch_size", "step_ms", "is_named"),
    [(2, 2, True), (2, 20, False), (64, 2, False), (0, 2, False)],
)
def test_short_steps_with_few_samples_may_be_worth_more_of_them(
    batch_size: int, step_ms: int, is_named: bool
) -> None:
    run = made_run([step_ms * MS] * 40, gpus=[])
    loader = SetupCall(kind="loader", call="DataLoader", file="a.py", line=5, batch_size=batch_size)
    run.setup_calls = SetupCalls((loader,))
    named = found(run, "double the batch size")
    assert [(one.low_ns, one.high_ns) for one in named] == [(0, step_ms * MS / 2)] * is_named
    assert all((one.edit or "").startswith("DataLoader(batch_size=4) at a.py:5") for one in named)


def with_sizes(sizes: Sequence[float], full: Sequence[float] | None) -> Run:
    """A run whose steps take 1 ms for each element of their batch, of which some are no padding."""
    run = made_run([size * MS for size in sizes], gpus=[])
    columns = {ELEMENTS: sizes} | ({} if full is None else {ELEMENTS_WITHOUT_PADDING: full})
    run.metric_names = tuple(columns)
    run.metrics = np.zeros(len(columns) * len(sizes), METRIC_DTYPE)
    run.metrics["name"] = np.repeat(np.arange(len(columns)), len(sizes))
    run.metrics["step"] = np.tile(np.arange(len(sizes)), len(columns))
    run.metrics["value"] = np.concatenate([*columns.values()])
    return run


def test_batches_that_one_long_sample_pads_are_priced_by_what_is_padding() -> None:
    sizes, full = [10.0] * 36 + [50.0] * 4, [10.0] * 36 + [10.0] * 4
    run = with_sizes(sizes, full)
    run.setup_calls = SetupCalls(
        (
            SetupCall(
                kind="loader",
                call="DataLoader",
                file="a.py",
                line=9,
                collate=CollateFunction("collate", "a.py", 4),
            ),
        )
    )
    (one,) = found(run, "pad less")
    assert one.low_ns == 0
    assert one.high_ns == pytest.approx(0.8 * 4 * 40 * MS / 40)
    assert one.edit is not None and one.edit.endswith(", by collate (a.py:4)")
    assert "4 steps of 40 have batches of more than twice the usual size, 80% of" in one.evidence


@pytest.mark.parametrize(
    ("sizes", "full"),
    [
        ([10.0] * 36 + [50.0] * 4, None),  # what is padding is not known
        ([10.0] * 36 + [50.0] * 4, [10.0] * 36 + [45.0] * 4),  # hardly any is
        ([10.0] * 24 + [50.0] * 16, [10.0] * 40),  # they are no exceptions
        ([10.0] * 39 + [50.0], [10.0] * 40),
        ([10.0] * 8 + [50.0] * 2, [10.0] * 10),
    ],
)
def test_large_batches_that_are_no_padding_are_not_named(
    sizes: Sequence[float], full: Sequence[float] | None
) -> None:
    assert not found(with_sizes(sizes, full), "pad less")


def test_activations_that_are_computed_again_are_priced() -> None:
    again = "/v/torch/utils/checkpoint.py", "_checkpoint_hook.__init__.<locals>.unpack_hook"
    (one,) = found(sampled("backward", again, 30, 10), "keep activations")
    assert one.low_ns == pytest.approx((0.75 - SPREAD) * 5 * MS)
    assert not found(sampled("backward", again, 0, 40), "keep activations")
    run = sampled("backward", again, 30, 10)
    calls = ("/v/torch/_compile.py", "inner"), ("/v/torch/utils/checkpoint.py", "checkpoint")
    assert run.stacks is not None
    run.stacks = structs.replace(
        run.stacks,
        functions=(*run.stacks.functions, *calls),
        places=(*run.stacks.places, (1, 7), (2, 5), (3, 9)),
        # In another phase, a line of the program calls it by a function of a library.
        nodes=(
            *run.stacks.nodes,
            StackNode(-1, -1, 0, 0),
            StackNode(3, 2, 0, 0),
            StackNode(4, 3, 0, 0),
            StackNode(5, 4, 8, 8 * MS),
        ),
    )
    (one,) = found(run, "keep activations")
    assert one.edit is not None and "without torch.utils.checkpoint at a.py:7, " in one.edit
    assert not found(sampled("backward", again, 30, 10, gpus=["a GPU"]), "keep activations")


def test_threads_beyond_the_processors_may_be_what_steps_wait_for() -> None:
    known = CpuContention(10 * SECOND, 2, 20 * SECOND, 20 * SECOND)
    many = with_waits(made_run([10 * MS] * 20, torch_threads=16), 0.4, known)
    (one,) = found(many, "run no more threads")
    assert (one.low_ns, one.high_ns) == (0, 4 * MS)
    assert one.evidence.startswith("torch uses 16 threads on 2 processors")
    few = with_waits(made_run([10 * MS] * 20, torch_threads=2), 0.4, known)
    assert not found(few, "run no more threads")


def test_workers_beyond_the_processors_may_be_what_steps_wait_for() -> None:
    def of(workers: int, known: CpuContention, making_ms: float = 4) -> list[Finding]:
        facts: dict[str, Any] = {KEY: {"loader_workers": workers}}
        run = with_waits(made_run([10 * MS] * 20, **facts), 0.4, known)
        times = dict.fromkeys(
            ("longest_ns", "waiting_ns", "starting_ns", "cpu_ns", "other_cpu_ns"), 1
        )
        making_ns = round(20 * 2 * making_ms * MS)
        row = WorkerTimes(
            worker=0,
            processes=1,
            batches=20,
            making_ns=making_ns,
            queued_ns=making_ns // 2,
            **times,
        )
        run.loader = Loaders((Loader(dataset="Rows", workers=16, iterators=1, rows=(row,)),))
        return found(run, "use fewer loader")

    busy = CpuContention(10 * SECOND, 2, 20 * SECOND, 20 * SECOND, started_ns=15 * SECOND)
    (one,) = of(16, busy)
    assert (one.low_ns, one.high_ns) == (0, 4 * MS)
    assert one.evidence.startswith("16 workers share 2 processors with the loop")
    assert one.edit == "DataLoader(num_workers=2)"
    assert not of(2, busy)
    # As many are needed, the processors are not busy with them, or others take them.
    assert not of(16, busy, making_ms=40)
    assert not of(16, CpuContention(10 * SECOND, 2, 20 * SECOND, 20 * SECOND, started_ns=SECOND))
    others = CpuContention(10 * SECOND, 2, 20 * SECOND, 9 * SECOND, started_ns=8 * SECOND)
    assert not of(16, others)
