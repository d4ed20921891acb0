# SPDX-License-Identifier: Apache-2.0
"""`watch --json`: the objects, and how it ends."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu
from pyinstrument_gpu.core.condition import Condition
from pyinstrument_gpu.watch.process import MachineClocks
from pyinstrument_gpu.watch.watch import Watch, stream
from tests.cli.test_commands import command, invoke
from tests.helpers.run_writer import save
from tests.helpers.script import run_script
from tests.helpers.sinks import HANGS_AFTER_S
from tests.helpers.watched import BEGAN_NS, BOOTED_NS, S, clocks_at, finished, replace_file, running

DOCS = Path(pyinstrument_gpu.__file__).parents[1] / "docs"
SNAPSHOTS = Path(__file__).parents[1] / "snapshots"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.gpurun"


def test_a_line_for_each_look_until_the_run_ends(path: Path) -> None:
    save(running(), path)
    lines: list[str] = []
    states = [running(6), running(7), finished(8)]
    watch = Watch(lambda: [path])
    stream(watch, lines.append, lambda: replace_file(states.pop(0), path), lambda: clocks_at(S))
    watch.close()
    objects = [json.loads(line) for line in lines]
    assert [run["steps"]["count"] for one in objects for run in one["runs"]] == [5, 6, 7, 8]
    assert [one["runs"][0]["heartbeat"]["condition"] for one in objects] == [
        *["running"] * 3,
        "ended",
    ]
    assert {one["version"] for one in objects} == {1}
    assert {one["realtime_ns"] for one in objects} == {BOOTED_NS + BEGAN_NS + S}


def test_of_several_it_goes_on_until_all_have_ended(path: Path) -> None:
    other = path.with_name("other.gpurun")
    save(finished(), path)
    files = [path]
    lines: list[str] = []

    def wait() -> None:
        if len(lines) == 1:
            files.append(other)  # it is not there yet
        elif len(lines) == 2:
            save(finished(), other)

    watch = Watch(lambda: files)
    save(running(), path)
    waits = 0

    def end_first() -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            replace_file(finished(), path)
        wait()

    stream(watch, lines.append, end_first, lambda: clocks_at(S))
    watch.close()
    last = [json.loads(line)["runs"] for line in lines]
    assert [len(runs) for runs in last] == [1, 2, 2]
    assert last[1][1] == {"file": str(other), "reason": "No such file or directory"}


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def test_the_page_names_every_key() -> None:
    text = (DOCS / "page.md").read_text()
    look = json.loads((SNAPSHOTS / "watch-everything/look.json").read_text())
    look["recorder"]["dropped"] = {}  # whose keys are causes
    keys = set(keys_of(look))
    assert keys - set(re.findall(r"`(\w+)`", text)) == set()
    assert {one.value for one in Condition} <= set(re.findall(r"`([\w ]+)`", text))


def test_a_finished_run_is_one_object(path: Path) -> None:
    save(finished(), path)
    done = invoke("watch", "--json", str(path))
    assert done.exit_code == 0
    assert json.loads(done.output)["runs"][0]["file"] == str(path)


def test_a_file_that_is_not_there_yet_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pyinstrument_gpu.cli.watch._wait_for_next_second", lambda: save(finished(), path)
    )
    result = invoke("watch", "--json", str(path))
    assert (result.exit_code, result.stderr) == (0, f"waiting for {path}\n")
    assert result.stdout.count("\n") == 1


def test_what_is_no_run(path: Path) -> None:
    path.write_text("a text")
    done = invoke("watch", "--json", str(path))
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {path}: not a run file: it starts with b'a text', but")


@pytest.fixture
def followed(path: Path) -> Any:
    """`watch --json` of a run of this process, which goes on."""
    pid, now = 1, MachineClocks.now()
    anchor = {
        "run_ns": 650_000_000,
        "monotonic_ns": now.monotonic_ns,
        "monotonic_raw_ns": now.monotonic_ns,
        "realtime_ns": now.realtime_ns,
    }
    save(running(anchor=anchor, environment={"host": now.host, "pid": pid}), path)
    process = command("watch", "--json", str(path))
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_is_a_good_end(followed: "subprocess.Popen[bytes]") -> None:
    assert followed.stdout is not None
    json.loads(followed.stdout.readline())
    followed.send_signal(signal.SIGINT)
    _, errors = followed.communicate(timeout=HANGS_AFTER_S)
    assert (followed.returncode, errors) == (0, b"")


def test_so_is_a_reader_that_has_had_enough(followed: "subprocess.Popen[bytes]") -> None:
    assert followed.stdout is not None and followed.stderr is not None
    followed.stdout.readline()
    followed.stdout.close()
    assert followed.stderr.read() == b""
    assert followed.wait(timeout=HANGS_AFTER_S) == 0


def test_it_works_without_textual(path: Path) -> None:
    save(finished(), path)
    script = """
import sys
sys.modules["textual"] = None
from pyinstrument_gpu.cli import main
for options in (["--json"], []):
    try:
        main(["watch", *options, sys.argv[1]])
    except SystemExit as end:
        print(end.code)
"""
    done = run_script(script, path)
    shown, *codes = done.stdout.splitlines()
    assert json.loads(shown)["runs"]
    assert codes == ["0", "1"]
    assert done.stderr == (
        "Error: watch needs textual: pip install textual. `watch --json` does not\n"
    )


def test_screen_needs_a_terminal(path: Path) -> None:
    """Where there is none, textual reads the end of its input forever."""
    pytest.importorskip("textual", reason="textual is not installed: pip install '.[watch]'")
    save(finished(), path)
    for given in (path, path.with_name("later.gpurun")):  # which is not waited for in vain
        done = invoke("watch", str(given))
        assert done.exit_code == 2
        assert "the screen needs a terminal" in done.output
