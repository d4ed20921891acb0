# SPDX-License-Identifier: Apache-2.0
"""What is said of compilations: as much as there is to say, and only what the run proves."""

import json
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pyinstrument_gpu.aspects.compilations import MOST_COMPILATIONS
from pyinstrument_gpu.aspects.compilations.data import Compilations, decode_compilations
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from pyinstrument_gpu.errors import RunFileDamagedError
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.overview import sections
from tests.page.runs import STEP_NS, training
from tests.report.programs import MS, compilations

NOTHING = Compilations()


def run_with(found: Compilations | None, *compile_ms: int, steps: int = 10) -> Run:
    """A run of steps of `STEP_NS`, of which the first have these readings."""
    readings = [(0, step, 0, 0, ms * MS) for step, ms in enumerate(compile_ms)]
    return training(
        [STEP_NS] * steps,
        compilations=found,
        metric_names=("step/compile_ns",) if compile_ms else (),
        metrics=np.array(readings, METRIC_DTYPE),
    )


def without_limit(found: Compilations) -> Compilations:
    return replace(found, limits=(), breaks=())


def sentences(document: Document) -> list[str]:
    """The report's lines on compilation."""
    parts = sections(document)["compilations"]
    return [part.text for part in parts if isinstance(part, Sentence) and part.text]


def advised(document: Document) -> list[Any]:
    return [one for one in document.findings if one.about.startswith("recompilation")]


def test_one_compilation_is_one_line() -> None:
    document = document_of(run_with(without_limit(compilations([6])), 2, steps=1000))
    assert sentences(document) == [
        "Compilation: 1.00 ms, 500 us of it in TorchInductor, in 1 compilation of forward "
        "(/p/gpt.py:88)"
    ]
    assert "compil" not in document.verdict
    assert not advised(document)


def test_a_module_of_torch_is_named_by_the_line_that_calls_it() -> None:
    found = without_limit(compilations([6]))
    inner = [
        replace(one, function="inner", file="/v/torch/_dynamo/external_utils.py", line=68)
        for one in found.compilations
    ]
    run = run_with(replace(found, compilations=tuple(inner)), 2, steps=1000)
    assert (
        "of a compiled module (/v/torch/_dynamo/external_utils.py:68)"
        in sentences(document_of(run))[0]
    )
    run.environment["phase_lines"] = [{"phase": "forward", "file": "/p/train.py", "line": 9}]
    assert sentences(document_of(run))[0].endswith("of a compiled module (called at /p/train.py:9)")


@pytest.mark.parametrize("found", [None, NOTHING])
def test_nothing_is_said_of_nothing(found: Compilations | None) -> None:
    document = document_of(run_with(found))
    assert document.sections["compilations"] is None
    assert not any("torch.compile:" in one for one in document.unknown)


def test_the_verdict_says_so_from_a_tenth_of_the_steps_time_on() -> None:
    step_ms = STEP_NS // MS
    for compile_ms, is_said in ((step_ms, True), (step_ms - 1, False)):
        document = document_of(run_with(without_limit(compilations([6])), compile_ms))
        assert ("of which 10% is compilation and the host" in document.verdict) == is_said


def test_a_function_compiled_again_for_other_sizes_may_be_compiled_for_any() -> None:
    found = without_limit(compilations([6, 16, 26], each_ns=4 * MS))
    (one,) = advised(document_of(run_with(found, 4, 4, 4)))
    assert (one.kind, one.about) == ("doubt", "recompilation of forward (/p/gpt.py:88)")
    assert (one.low_ns, one.high_ns) == (0, 0.8 * MS)
    assert "2 recompilations took 8.00 ms" in one.evidence
    assert "mark_dynamic" in one.edit


@pytest.mark.parametrize(
    "changed",
    [
        {"reason": "L['n'] == 3"},
        {"duration_ns": MS // 100},  # not worth a word
        {"recompiled": None, "reason": None},  # torch did not say
    ],
)
def test_nobody_is_advised_where_the_premise_does_not_hold(changed: dict[str, Any]) -> None:
    found = without_limit(compilations([6, 16, 26], each_ns=4 * MS))
    changed_all = tuple(replace(one, **changed) for one in found.compilations)
    assert not advised(document_of(run_with(replace(found, compilations=changed_all), 4, 4, 4)))


def test_a_function_that_is_compiled_no_more_is_told_with_its_last_reason() -> None:
    found = compilations([6, 16, 26])
    (one,) = advised(document_of(run_with(found, 1, 1, 1)))
    assert "reached torch._dynamo.config.recompile_limit (8) in step 2" in one.evidence
    assert "expected 31, actual 4" in one.evidence
    for hint, edit in ((None, "keep constant what the reason names"), ("a tensor", "a tensor")):
        limits = (replace(found.limits[0], reason="L['n'] == 9", hint=hint),)
        (other,) = advised(document_of(run_with(replace(found, limits=limits), 1, 1, 1)))
        assert edit in other.edit


def test_reasons_that_differ_by_values_alone_are_one() -> None:
    found = without_limit(compilations([6, 16, 26, 36]))
    last = replace(
        found.compilations[3],
        step=None,
        reason="L['n'] == 3",
        function="torch_dynamo_resume_in_f_at_9",
    )
    document = document_of(run_with(replace(found, compilations=(*found.compilations[:3], last))))
    shown = "\n".join(sentences(document))
    assert "expected 32, actual 31 (and 1 alike)\n" in shown
    assert "3 of them recompilations in steps 1 to 2 and outside steps" in shown
    assert "f from line 9 on (/p/gpt.py:88) was compiled once, 1.00 ms: L['n'] == 3" in shown
    assert document.sections["compilations"].in_steps_ns is None  # the readings are lost


def test_of_threads_and_paths_that_are_not_there_nothing_is_said() -> None:
    one = {"begin_ns": 1, "duration_ns": 1, "kind": "dynamo", "thread": 77, "path": 3, "step": 2}
    data = json.dumps({"compilations": [one, {**one, "thread": 78, "path": 2}]}).encode()
    found = decode_compilations(data, paths=3, threads=[5, 78])
    assert [(one.thread, one.path) for one in found.compilations] == [(None, None), (1, 2)]
    assert found.count == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"begin_ns": -1},
        {"duration_ns": 1 << 62},
        {"kind": "a" * 301},
        {"reason": 3},
        {"line": -1},
        {"thread": "main"},
    ],
)
def test_a_document_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    one = {"begin_ns": 1, "duration_ns": 1, "kind": "dynamo"} | changed
    with pytest.raises(RunFileDamagedError):
        decode_compilations(json.dumps({"compilations": [one]}).encode(), 1, [])
    many = {
        "compilations": [{"begin_ns": 1, "duration_ns": 1, "kind": ""}] * (MOST_COMPILATIONS + 1)
    }
    with pytest.raises(RunFileDamagedError):
        decode_compilations(json.dumps(many).encode(), 1, [])
