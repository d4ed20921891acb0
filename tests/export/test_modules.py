# SPDX-License-Identifier: Apache-2.0
"""Passes through modules, in every format: a step of two layers with a checkpoint, and the same
forward pass outside of steps."""

import json

import numpy as np
import pytest

from pyinstrument_gpu.aspects.modules.data import MODULE_SPAN_DTYPE, ModulePass
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export import csv as csv_export
from pyinstrument_gpu.export import nvtxt, perfetto
from pyinstrument_gpu.export.labels import MODULE_COLORS
from pyinstrument_gpu.export.runs import losses
from tests.helpers.csv_rows import csv_rows
from tests.helpers.made_runs import run_of, written
from tests.helpers.nsight import read_nvtxt

FORWARD, BACKWARD, RECOMPUTE = ModulePass
LAYER, ATTENTION = 0, 1
NAMES = ("layers.0", 'layers.0.attn, "flash"')

SPANS = [
    # What a pass of a module has in common with the phase around it stands inside of it.
    (0, 0, 0, 0, 0, 0, 7, 10, 30, 110, 130, -1, 1),
    (1, 1, 0, 0, 0, -1, -1, 40, 90, -1, -1, -1, 1),
]
MODULE_SPANS = [
    (12, 20, ATTENTION, FORWARD, 0, 0, 0, 1, 7, 112, 120),
    (10, 30, LAYER, FORWARD, 0, 0, 0, 0, 7, 110, 130),
    (50, 60, ATTENTION, RECOMPUTE, 0, 0, 1, 1, -1, -1, -1),
    (45, 80, LAYER, BACKWARD, 0, 0, 1, 0, -1, -1, -1),
    (200, 200, LAYER, FORWARD, -1, 1, -1, 0, -1, -1, -1),
]
"""The last has no length, and is on another thread."""


def run(**parts: object) -> Run:
    made = {
        "path_parents": [-1, -1],
        "steps": Steps(np.array([(0, 5, 95, 1, 1, True, 0)], STEP_DTYPE)),
        "module_names": NAMES,
        "module_spans": np.array(MODULE_SPANS, MODULE_SPAN_DTYPE),
        "environment": {"pid": 4242},
    }
    return run_of(SPANS, ("forward", "backward"), **(made | parts))


def test_csv() -> None:
    attention = '"layers.0.attn, ""flash"""'
    assert written(csv_export.write, run(), modules=True).decode() == (
        "module,kind,path,step,depth,thread,thread_name,stream,stream_name,"
        "host_begin_ns,host_end_ns,device_begin_ns,device_end_ns\r\n"
        f"{attention},forward,forward,0,1,0,MainThread,7,stream 7,12,20,112,120\r\n"
        "layers.0,forward,forward,0,0,0,MainThread,7,stream 7,10,30,110,130\r\n"
        f"{attention},recompute,backward,0,1,0,MainThread,,,50,60,,\r\n"
        "layers.0,backward,backward,0,0,0,MainThread,,,45,80,,\r\n"
        "layers.0,forward,,,0,1,,,,200,200,,\r\n"
    )
    with pytest.raises(ExportError, match="syncs and modules are separate tables"):
        written(csv_export.write, run(), modules=True, syncs=True)


def test_names_are_neutralized_on_demand() -> None:
    text = written(
        csv_export.write, run(module_names=("=1+1", "b")), modules=True, neutralize_formulas=True
    )
    assert csv_rows(text.decode())[1]["module"] == "'=1+1"


def test_nvtxt_has_a_colour_for_each_kind_of_pass() -> None:
    found = read_nvtxt(written(nvtxt.write, run()))
    modules = {
        (found.rows[each.process, each.row], each.text, each.color)
        for each in found.ranges
        if each.color in MODULE_COLORS.values()
    }
    layer, attention = "layers.0", 'layers.0.attn, "flash"'
    assert modules == {
        ("MainThread", layer, MODULE_COLORS[FORWARD]),
        ("MainThread", attention, MODULE_COLORS[FORWARD]),
        ("MainThread", f"{layer} (backward)", MODULE_COLORS[BACKWARD]),
        ("MainThread", f"{attention} (recompute)", MODULE_COLORS[RECOMPUTE]),
        ("thread 12", layer, MODULE_COLORS[FORWARD]),
        ("GPU 0 stream 7", layer, MODULE_COLORS[FORWARD]),
        ("GPU 0 stream 7", attention, MODULE_COLORS[FORWARD]),
    }


def test_lost_passes_are_named() -> None:
    whole = run()
    lacking = run(modules=whole.modules, module_spans=whole.module_spans[2:])
    assert losses(whole) is None
    assert losses(lacking) == "2 of 5 passes through modules are missing"
    assert losses(lacking, is_summary=True) is None
    facts = json.loads(written(perfetto.write, lacking))["otherData"]["runs"][0]
    assert (facts["passes"], facts["passes_recorded"]) == (3, 5)
    unwatched = run(module_names=(), module_spans=None)
    assert "passes" not in json.loads(written(perfetto.write, unwatched))["otherData"]["runs"][0]
