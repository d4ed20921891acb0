# SPDX-License-Identifier: Apache-2.0
"""What is said of weeks of runs: since when, which commit, and what explains it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report import json_text
from tests.helpers.run_writer import save
from tests.history.weeks import run_of_day, saved, weeks

RUNS, AT = 30, 18


def history(*arguments: str | Path, columns: int = 80) -> Result:
    runner = CliRunner(env={"COLUMNS": str(columns)})
    return runner.invoke(main, ["history", *map(str, arguments)])


def change(number: int, **facts: Any) -> dict[str, Any]:
    """4 % more in the backward pass from a run on, with these facts."""
    return {"backward": 1.04, **facts} if number >= AT else {}


def document(folder: Path, since: Any) -> dict[str, Any]:
    saved(folder, weeks(RUNS, since, spread=0.004))
    result = history(folder, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    schema = Path(json_text.__file__).with_name("history_schema.json").read_text()
    jsonschema.validate(found, json.loads(schema))
    return found


def the_change(folder: Path, since: Any) -> dict[str, Any]:
    (program,) = document(folder, since)["programs"]
    (found,) = program["changes"]
    assert isinstance(found, dict)
    return found


def test_a_commit_that_made_the_backward_pass_slower(tmp_path: Path) -> None:
    saved(
        tmp_path,
        weeks(
            RUNS,
            lambda n: {**change(n, revision="b" * 40), "host": ["box", "bay"][n % 2]},
            spread=0.004,
        ),
    )
    result = history(tmp_path, columns=400)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "train.py: 30 runs on 2 hosts, 1 Nov to 30 Nov"
    assert lines[1].startswith("Since 19 Nov, commit bbbbbbbb: ")
    found = re.search(r"backward \+\d\.\d % \((\d\.\d) to (\d\.\d)\)", lines[1])
    assert found is not None
    assert float(found[1]) <= 4.0 <= float(found[2])
    assert lines[1].endswith("; not explained by torch, host, GPU, driver or command.")
    assert "would probably have been found" in lines[2]
    assert len(lines) <= 20


def test_a_regression_that_was_mended(tmp_path: Path) -> None:
    def since(number: int) -> dict[str, Any]:
        slower = {"backward": 1.08} if 20 <= number < 40 else {}
        return {"revision": f"{number // 10 + 1:02x}" * 20, **slower}

    saved(tmp_path, weeks(60, since, seed=5))
    mended, made = history(tmp_path, columns=400).stdout.splitlines()[1:3]
    assert mended.startswith("Since 11 Dec, commit 05050505: backward -7.")
    assert made.startswith("Since 21 Nov, commit 03030303: backward +8.")


def test_two_configurations_in_turn_hide_no_change(tmp_path: Path) -> None:
    def of_run(number: int) -> dict[str, Any]:
        larger = 1 + number % 2
        words = ["/home/me/train.py", "--batch", str(8 * larger), "--seed", str(number)]
        return {"backward": larger * (1.1 if number >= 30 else 1), "arguments": words}

    saved(tmp_path, weeks(60, of_run, seed=5))
    lines = history(tmp_path, columns=400).stdout.splitlines()
    assert lines[0] == (
        "train.py: 60 runs on 1 host in 2 configurations (--batch 8; --batch 16), 1 Nov to 30 Dec"
    )
    assert lines[1].startswith("Since 1 Dec, with no new commit: backward +")
    found = re.search(r"backward \+\S+ % \((\S+) to (\S+)\)", lines[1])
    assert found is not None
    assert float(found[1]) <= 10 <= float(found[2])
    assert lines[1].endswith(
        "; not explained by torch, host, GPU or driver; command can't be ruled out."
    )
    visible = re.search(r"A change of (\S+) % or more", lines[2])
    assert visible is not None and float(visible[1]) < 3
    (program,) = json.loads(history(tmp_path, "--json").stdout)["programs"]
    assert program["configurations"] == ["--batch 8", "--batch 16"]


def test_configurations_without_a_change_say_that_they_are_several(tmp_path: Path) -> None:
    def of_run(number: int) -> dict[str, Any]:
        words = ["train.py", *(["--compile"] if number % 3 else []), "lr=0.1"]
        return {"backward": 2 if number % 3 else 1, "arguments": words}

    (program,) = document(tmp_path, of_run)["programs"]
    assert program["configurations"] == ["without --compile", "--compile"]
    assert "changes" not in program
    assert program["visible"] < 0.05


def test_torch_changed_at_the_same_point(tmp_path: Path) -> None:
    found = the_change(tmp_path, lambda n: change(n, torch="2.10.0"))
    assert found["changed"] == [{"what": "torch version", "before": ["2.9.0"], "after": ["2.10.0"]}]
    assert found["same"] == ["host", "GPU", "driver", "command"]
    assert found["is_commit_known"] is True
    assert "commits" not in found


def test_the_command_changed_at_the_same_point(tmp_path: Path) -> None:
    found = the_change(tmp_path, lambda n: change(n, arguments=["train.py", "--lr", "1"]))
    assert [one["what"] for one in found["changed"]] == ["command line"]


def test_what_runs_do_not_say_is_unknown(tmp_path: Path) -> None:
    def since(number: int) -> dict[str, Any]:
        # No seed of a command line is what made the difference.
        seed = {"arguments": ["train.py", "--seed", str(number)]}
        return {**change(number), **seed, "revision": ..., "driver": ...}

    found = the_change(tmp_path, since)
    assert found["is_commit_known"] is False
    assert found["unknown"] == ["driver", "command"]
    assert "changed" not in found


def test_no_change_says_what_would_have_been_seen(tmp_path: Path) -> None:
    (program,) = document(tmp_path, lambda n: {})["programs"]
    assert "changes" not in program
    assert 0.01 <= program["visible"] < 0.03
    text = " ".join(history(tmp_path).stdout.split())
    assert "No change was found in time per step, tokens/s, " in text
    assert f"A change of {100 * program['visible']:.1f} % or more in time per step" in text


def test_few_runs_and_none(tmp_path: Path) -> None:
    saved(tmp_path / "few", weeks(3))
    assert "Too few runs to tell whether anything changed" in history(tmp_path / "few").stdout
    none = tmp_path / "none"
    none.mkdir()
    save(Run(environment=run_of_day(7).environment), none / "empty.gpurun")
    assert "No run in the store has a complete step" in history(none).stdout


def test_since_a_day_and_a_store_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path / "runs", weeks(20))
    store = tmp_path / "store"
    assert history(tmp_path / "runs", "--store", store).exit_code == 0
    later = json.loads(history("--store", store, "--since", "2026-11-11", "--json").stdout)
    assert later["programs"][0]["runs"] == 10


def test_the_page_has_each_series_and_loads_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "runs", weeks(RUNS, change, spread=0.004))
    page = tmp_path / "history.html"
    assert history(tmp_path / "runs", "--html", page).exit_code == 0
    text = page.read_text()
    assert "<h3>backward</h3>" in text
    assert '"x_name":"time"' in text
    assert "http" not in text.partition("<body>")[2].partition("<footer>")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give run files, a folder of them, or --store"),
        (["runs", "--store", "s3://bucket/history"], "is only read"),
        (["--store", "x", "--json", "--html", "y"], "give one of"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = history(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
