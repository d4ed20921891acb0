# SPDX-License-Identifier: Apache-2.0
"""Features of other packages: found by name, loaded when they are used, left out when broken."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import pyinstrument_gpu as pig
from pyinstrument_gpu.analysis import rules
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.errors import ExportError, SinkError
from pyinstrument_gpu.export import export
from tests.helpers.made_script import WatchedScript
from tests.helpers.plugins import install, on_the_path
from tests.helpers.sinks import KeepingSink

LEFT_OUT = "the plug-in 'mine' of pyinstrument_gpu is left out: "


def short_run() -> pig.Run:
    with pig.record() as recording, pig.gpu_step(), pig.gpu_phase("a"):
        pass
    return recording.run


def steady_run() -> pig.Run:
    """A run with steps enough for rules to look at, in which they find nothing."""
    program = WatchedScript()
    for _ in range(10):
        with program.step():
            program.leaf("forward", 10**7)
    return program.run()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "site"


def test_a_command_has_its_place_among_the_others(folder: Path) -> None:
    install(
        folder,
        "import click\n@click.command()\ndef greet():\n    print('hello')\n",
        {"commands": "added:greet"},
    )
    with on_the_path(folder):
        assert "Of the package added." in CliRunner().invoke(main, ["--help"]).output
        assert "added" not in sys.modules
        assert CliRunner().invoke(main, ["mine"]).output == "hello\n"


def test_a_sink_is_named(folder: Path) -> None:
    install(folder, "", {"sinks": "tests.helpers.sinks:KeepingSink"})
    with on_the_path(folder):
        recording = pig.record(sinks=["mine"])
        assert isinstance(recording._options.sinks[0], KeepingSink)
        with pytest.raises(ValueError, match="got 'yours': there are mine"):
            pig.record(sinks=["yours"])


def test_a_rule_says_what_it_finds(folder: Path) -> None:
    install(
        folder,
        "from pyinstrument_gpu.analysis.rules.case import UNKNOWN, guidance\n"
        "def rule(case):\n    yield guidance('be quick', None, *UNKNOWN, 'it is slow')\n",
        {"rules": "added:rule"},
    )
    run = steady_run()
    with on_the_path(folder):
        assert "be quick" in [finding.about for finding in rules.findings(run)]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise OSError('gone')", "OSError: gone"),
        ("", "AttributeError: module 'added' has no attribute 'thing'"),
        ("thing = 3", "added:thing is 3"),
    ],
)
def test_what_cannot_be_loaded_is_named_and_left_out(
    folder: Path, tmp_path: Path, source: str, problem: str
) -> None:
    kinds = ("exporters", "sinks", "commands", "rules")
    install(folder, source, dict.fromkeys(kinds, "added:thing"))
    run = short_run()
    with on_the_path(folder):
        with pytest.warns(RuntimeWarning, match=LEFT_OUT) as warned:
            export([run], tmp_path / "a.csv")
        assert [str(one.message) for one in warned] == [LEFT_OUT + problem]
        with pytest.warns(RuntimeWarning, match=LEFT_OUT):
            assert CliRunner().invoke(main, ["mine"]).exit_code == 2
        with pytest.warns(RuntimeWarning, match=LEFT_OUT), pytest.raises(SinkError):
            pig.record(sinks=["mine"])
        with pytest.warns(RuntimeWarning, match=LEFT_OUT):
            assert rules.findings(steady_run()) == []


def test_an_exporter_that_fails_is_named(folder: Path, tmp_path: Path) -> None:
    install(
        folder,
        "from pyinstrument_gpu.export import Exporter\n"
        "def write(runs, sink, *, advance):\n    1 / 0\n"
        "exporter = Exporter(write, {'.mine': 'mine'})\n",
        {"exporters": "added:exporter"},
    )
    run = short_run()
    with on_the_path(folder), pytest.raises(ExportError, match=r"'mine' can't write .*ZeroDiv"):
        export([run], tmp_path / "a.mine")
    assert not list(tmp_path.glob("a.mine*"))


BROKEN_ASPECT = """
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.watcher import Watcher
class Watch(Watcher):
    name = "mine"
    def begin(self, recording):
        super().begin(recording)
        self.fail("begin")
    def document(self):
        self.fail("document")
        return {"a": 1}
    def fail(self, method):
        if method == FAILING: raise ValueError(method)
class Mine(DocumentAspect):
    name, document, noted, section_type = "mine", dict[str, int], "mine", dict[str, int] | None
    def attributes(self, given): self.fail("attributes"); return super().attributes(given)
    def read(self, found): self.fail("read"); return super().read(found)
    def section(self, run): self.fail("section"); return run.mine
    def parts(self, section, document): self.fail("parts"); yield from ()
    def causes(self, run): self.fail("causes"); yield from ()
    def unknown(self, run): self.fail("unknown"); yield from ()
    fail = Watch.fail
def watcher(options):
    if FAILING == "watcher": raise ValueError(FAILING)
    return Watch()
ASPECT = Mine()
"""


@pytest.mark.parametrize(
    "failing",
    ["watcher", "begin", "document", "attributes", "read", "section", "parts", "causes", "unknown"],
)
def test_an_aspect_that_fails_stops_no_recording_and_no_report(folder: Path, failing: str) -> None:
    install(folder, f"FAILING = {failing!r}" + BROKEN_ASPECT, {"aspects": "added"})
    for module in ("aspect", "watch"):
        (folder / "added" / f"{module}.py").write_text("from added import ASPECT, watcher\n")
    with on_the_path(folder):
        with pytest.warns(RuntimeWarning, match=rf"{LEFT_OUT}\w+\(\) raised ValueError: {failing}"):
            with pig.record(aspects="mine") as recording, pig.gpu_step(), pig.gpu_phase("a"):
                pass
            text = recording.run.report(verbose=True)
        assert recording.run.complete
        assert recording.run.phases["a"].count == 1
    assert "a " in text


def test_where_warnings_are_errors_a_broken_one_ends_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(folder, "raise OSError('gone')", {"aspects": "added"})
    with on_the_path(folder), pig.record(aspects=["mine"]) as recording:
        pass
    assert recording.run.complete
    assert LEFT_OUT in capsys.readouterr().err


def test_an_aspect_that_is_not_installed_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"aspects of plug-ins .* got 'mine': there are none"):
        pig.record(aspects=["mine"])
