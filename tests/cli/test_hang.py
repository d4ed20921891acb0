# SPDX-License-Identifier: Apache-2.0
"""What the watchdog starts: the text of `why` beside the runs, and what is called with its JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from msgspec import structs

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.cli.hang import look_into, text_beside
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import hang_program
from tests.aspects.stalls.test_watchdog import LIMIT_S, quick_steps
from tests.cli.test_why import run_of
from tests.helpers.job_endings import S
from tests.helpers.run_writer import save


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Of ranks 0 to 2, of which ranks 1 and 2 hang."""
    monkeypatch.setattr("pyinstrument_gpu.cli.why._WAIT_S", 0)
    files = []
    for rank in range(3):
        run = run_of(rank, 80, world_size=3)
        stall = Stall(since_ns=0, noticed_ns=S, limit_ns=S, step=80)
        run.stalls = (stall if rank else structs.replace(stall, ended_ns=2 * S),)
        files.append(tmp_path / f"job.rank{rank}.gpurun")
        save(run, files[-1])
    return files


def test_the_lowest_rank_that_hangs_does_it(files: list[Path]) -> None:
    text = files[0].with_name("job.why.txt")
    for file in (files[0], files[2]):
        look_into(file, None)
        assert not text.exists()
    look_into(files[1], None)
    assert "ranks 0-2" in text.read_text().splitlines()[0]
    assert sorted(path.name for path in text.parent.iterdir()) == [
        *(f"job.rank{rank}.gpurun" for rank in range(3)),
        "job.why.txt",
    ]


def test_a_link_in_the_place_of_the_text_is_replaced(files: list[Path], tmp_path: Path) -> None:
    precious, text = tmp_path / "precious", files[0].with_name("job.why.txt")
    precious.write_text("precious")
    for name in (text, text.with_name(f"{text.name}.{os.getpid()}")):
        name.symlink_to(precious)
    look_into(files[1], None)
    assert precious.read_text() == "precious"
    assert "ranks 0-2" in text.read_text() and not text.is_symlink()


def test_a_program_gets_the_json(files: list[Path], tmp_path: Path) -> None:
    program = tmp_path / "a program.py"
    program.write_text("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())")
    out = tmp_path / "$HOME"  # no shell
    look_into(files[1], f"{sys.executable} '{program}' '{out}'")
    found = json.loads(out.read_text())
    assert [rank["condition"] for rank in found["ranks"]].count("lost") == 3
    assert found["verdict"] in (tmp_path / "job.why.txt").read_text().replace("\n", " ")


def test_a_program_that_fails_is_named_in_the_text(files: list[Path], tmp_path: Path) -> None:
    call = f"{sys.executable} -c 'raise SystemExit(7)'"
    look_into(files[1], call)
    last = (tmp_path / "job.why.txt").read_text().splitlines()[-1]
    assert last.startswith(f"{call} failed: ") and "exit status 7" in last
    look_into(files[1], f"{call} --password hidden")
    last = (tmp_path / "job.why.txt").read_text().splitlines()[-1]
    assert "hidden" not in last and last.count("--password ***") == 2
    look_into(files[1], "/no/such/program")
    assert "No such file" in (tmp_path / "job.why.txt").read_text().splitlines()[-1]


def test_a_url_gets_the_json(files: list[Path]) -> None:
    got: list[tuple[str | None, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            got.append((self.headers["Content-Type"], self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        look_into(files[1], f"http://127.0.0.1:{server.server_port}/hook")
        thread.join()
    ((kind, body),) = got
    assert kind == "application/json" and json.loads(body)["version"] == 1


def test_names_of_texts() -> None:
    names = {"job.rank3.gpurun": "job", "rank_03.gpurun": "rank_03", "a.b.gpurun": "a.b"}
    for file, name in names.items():
        assert text_beside(Path("x") / file) == Path("x") / f"{name}.why.txt"


@pytest.mark.parametrize("call", ["", " ", "'"])
def test_calls_that_are_none(call: str) -> None:
    with pytest.raises(ValueError, match="on_hang must be a command or a URL, got"):
        pig.record(on_hang=call)
    with pytest.raises(TypeError, match="on_hang must be a str or None, got 7"):
        pig.record(on_hang=7)  # type: ignore[arg-type]


def test_the_watchdog_starts_it_without_the_gil(tmp_path: Path) -> None:
    """The program waits with the GIL for what only that can give it."""
    import ctypes

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    library = ctypes.PyDLL(None)  # whose functions keep the GIL
    library.fopen.restype = ctypes.c_void_p
    library.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.fclose.argtypes = [ctypes.c_void_p]
    with pig.record(tmp_path / "a.gpurun", watchdog_s=LIMIT_S):
        script = f'echo "$ABOUT" > "{pipe}"'.encode()
        native.set_stall_program([b"/bin/sh", b"-c", script], [b"ABOUT=it hangs"])
        quick_steps()
        with gpu_step():
            file = library.fopen(os.fsencode(pipe), b"r")
            library.fclose(file)
    hang_program.remove()


def test_command_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[bytes]] = []
    monkeypatch.setattr(native, "set_stall_program", lambda *both: given.extend(both))
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD", "x.gpurun")
    monkeypatch.setenv("RANK", "3")
    hang_program.install(tmp_path / "a.gpurun", "page me")
    command, environment = given
    file = os.fsencode(tmp_path / "a.gpurun")
    assert command[1] == b"-c" and command[3:] == [file, b"page me"]
    compile(command[2], "command", "exec")
    names = {pair.partition(b"=")[0] for pair in environment}
    assert {b"RANK", b"PYTHONPATH"} <= names and b"PYINSTRUMENT_GPU_RECORD" not in names
