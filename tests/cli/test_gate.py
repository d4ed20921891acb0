# SPDX-License-Identifier: Apache-2.0
"""The command `gate`: what it runs, what it says, and how it ends."""

import contextlib
import json
import operator
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.gate.sides import CommandSide, editable_packages
from tests.helpers.launched import ENVIRONMENT, write
from tests.helpers.run_writer import save
from tests.helpers.timed_runs import MS, made_run, runs_of

TRAINING = """
    import sys
    from pyinstrument_gpu import gpu_phase, gpu_steps
    print("trains", *sys.argv[1:])
    for _ in gpu_steps(range(12)):
        with gpu_phase("forward"):
            sum(range(1000))
    """
# A stand-in for `pyinstrument-gpu run -o FILE --overwrite --no-report SIDE`: the runs are there
# already.
PLAYER = """\
#!/bin/sh
number=${3##*-}
echo "plays $6 into $3"
cp "$6-${number%.gpurun}.gpurun" "$3"
"""
GATE = ("-m", "pyinstrument_gpu", "gate", "--baseline", ".")
SPREAD = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.0)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    # No machine of the tests has another GPU user than the tests say.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def player(tmp_path: Path) -> Path:
    (tmp_path / "player").mkdir()
    path = tmp_path / "player" / "pyinstrument-gpu"
    path.write_text(PLAYER)
    path.chmod(0o755)
    return path


def record(side: str, *means_ms: float, **options: Any) -> None:
    for number, run in enumerate(runs_of(*means_ms, **options), 1):
        save(run, f"{side}-{number:02}.gpurun")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["gate", *arguments], prog_name="pyinstrument-gpu")


def play(player: Path, *options: str) -> Result:
    """A gate of the recorded runs."""
    return invoke("--baseline", f"{player} run old", *options, "--", str(player), "run", "new")


@pytest.mark.thorough
def test_real_programs_are_recorded_in_turn(tmp_path: Path) -> None:
    for folder in ("work", "old"):
        write(tmp_path, f"{folder}/train.py", TRAINING)
    os.chdir(tmp_path / "work")
    options = ("--runs", "3", "--max-runs", "4", "--fail-if-slower", "100000", "-o", "kept")
    result = invoke("--baseline", "../old", *options, "--json", "a.json", "train.py", "--lr", "1")
    assert result.exit_code == 0, result.output
    facts = json.loads(Path("a.json").read_text())
    assert facts["result"] in ("NOT SLOWER", "UNCLEAR")
    assert facts["sides"] == {
        "baseline": f"train.py --lr 1 (in {Path('..', 'old')})",
        "candidate": "train.py --lr 1",
    }
    made = len(facts["order"])
    for side, folder in (("baseline", "old"), ("candidate", "work")):
        assert facts["order"].count(side) == made / 2
        for number in range(1, made // 2 + 1):
            name = f"{side}-{number:02}"
            run = Run.load(Path("kept", f"{name}.gpurun"))
            assert run.complete and run.step_totals.count == 12
            assert run.environment["program_folder"] == str(tmp_path / folder)
            assert Path("kept", f"{name}.log").read_text().startswith("trains --lr 1\n")
    # Neither first all of one side, nor in strict turns.
    changes = sum(map(operator.ne, facts["order"], facts["order"][1:]))
    assert 2 <= changes < made - 1
    assert f"gate: run 1 of 6 ({facts['order'][0]}), 0:0" in result.stderr
    assert "; up to 8 runs if it stays unclear\n" in result.stderr
    assert "left" not in result.stderr.splitlines()[0]
    assert "gate: run 6 of 6 (" in result.stderr


def test_slower(player: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record("old", *(100 * f for f in SPREAD))
    record("new", *(106 * f for f in SPREAD))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "page.md")
    Path("page.md").write_text("before\n")
    result = play(player, "--json", "a.json", "--price-per-hour", "36")
    assert result.exit_code == 4
    assert "Cost: 1,000 -> 1,060 per million steps\n" in result.stdout
    assert result.stdout.startswith(
        "### SLOWER: +6.00 % elapsed time per step (99.4 % interval +5."
    )
    assert "| elapsed | 100.000 | 106.000 | +6.00 % | +5." in result.stdout
    assert "| forward | 50.000 | 53.000 | +3.00 % of elapsed | +" in result.stdout
    assert "5 runs of each side in turn, of at most 15, and " in result.stdout
    assert "Look 1 of 4: the intervals of all looks hold together in 95 %" in result.stdout
    assert f"* baseline: `{player} run old`\n" in result.stdout
    assert Path("page.md").read_text() == "before\n" + result.stdout + "\n"
    facts = json.loads(Path("a.json").read_text())
    assert (facts["result"], facts["comparison"]["verdict"]) == ("SLOWER", "SLOWER")
    assert [look["taken"] for look in facts["looks"]] == [True, False, False, False]
    assert len(facts["order"]) == 10


def test_result_stands_if_the_summary_of_the_job_cannot_be_written(
    player: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record("old", *[100.0] * 3)
    record("new", *[110.0] * 3)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/page.md")
    result = play(player, "--runs", "3", "--json", "a.json")
    assert result.exit_code == 4
    assert "$GITHUB_STEP_SUMMARY can't be written: no/page.md: No such file" in result.stderr
    assert json.loads(Path("a.json").read_text())["result"] == "SLOWER"


def test_no_interval_is_certain(player: Path) -> None:
    record("old", *[100.0] * 5)
    record("new", *[100.0] * 5)
    result = play(player, "--max-runs", "100")
    assert result.stdout.startswith("### NOT SLOWER: +0.00 % elapsed time per step (99.99 % ")


@pytest.mark.parametrize(
    ("percent", "exit_code", "text"),
    [
        ("8", 0, "The candidate is not slower by more than 8 %."),
        ("4", 4, "The candidate is slower by more than 4 %."),
    ],
)
def test_limit(player: Path, percent: str, exit_code: int, text: str) -> None:
    record("old", *(100 * f for f in SPREAD))
    record("new", *(106 * f for f in SPREAD))
    result = play(player, "--fail-if-slower", percent)
    assert (result.exit_code, text in result.stdout) == (exit_code, True)


def test_margin(player: Path) -> None:
    record("old", *[100.0] * 5)
    record("new", *[102.0] * 5)
    assert play(player).exit_code == 4
    result = play(player, "--margin", "3")
    assert result.exit_code == 0
    assert result.stdout.startswith("### NOT SLOWER: +2.00 %")


def test_runs_are_added_while_it_is_unclear(player: Path) -> None:
    # The first five of each side differ far more by themselves than the rest.
    record("old", 100, 112, 92, 108, 96, *[101, 100, 99] * 5)
    record("new", 108, 96, 112, 101, 113, *[109, 110, 111] * 5)
    result = play(player, "--max-runs", "20", "--json", "a.json")
    assert result.exit_code == 4
    facts = json.loads(Path("a.json").read_text())
    taken = [look["runs"] for look in facts["looks"] if look["taken"]]
    assert taken[0] == 5 and len(taken) > 1
    assert len(facts["order"]) == 2 * taken[-1]


@pytest.mark.parametrize(("options", "exit_code"), [((), 0), (("--strict",), 5)])
def test_unclear(player: Path, options: tuple[str, ...], exit_code: int) -> None:
    record("old", 100, 120, 80, 110)
    record("new", 105, 125, 90, 104)
    result = play(player, "--runs", "3", "--max-runs", "4", *options)
    assert result.exit_code == exit_code
    assert result.stdout.startswith("### UNCLEAR: +")
    assert "The runs show neither that the candidate is slower nor" in result.stdout
    assert re.search(r"They can show a slowdown of \d+ % or more\.", result.stdout)
    assert "4 runs of each side in turn, of at most 4" in result.stdout


def test_unclear_beyond_a_limit_needs_as_much_more(player: Path) -> None:
    record("old", 100, 120, 80, 110)
    record("new", 105, 125, 90, 104)
    results = [
        play(player, "--runs", "4", "--max-runs", "4", "--fail-if-slower", percent)
        for percent in ("0", "10")
    ]
    sizes = [re.search(r"They can show a slowdown of (\d+) %", of.stdout) for of in results]
    assert sizes[0] is not None and sizes[1] is not None
    assert int(sizes[1][1]) == int(sizes[0][1]) + 10


def test_metacharacters_stay_what_they_are(player: Path) -> None:
    phases = {"a|b<c": 0.5}
    record("old", *[100.0] * 3, phases=phases)
    record("new", *[110.0] * 3, phases=phases)
    command = ["--", str(player), "run", "new", "`x`"]
    result = invoke("--baseline", f"{player} run old", "--runs", "3", *command)
    assert "| a\\|b&lt;c | 50.000 | 55.000 |" in result.stdout
    assert "* candidate: `` " in result.stdout


def test_differences_between_the_sides_are_told(player: Path) -> None:
    record("old", *[100.0] * 3, revision="aaaa", torch="2.12")
    record("new", *[100.0] * 3, revision="bbbb", torch="2.13")
    result = play(player, "--runs", "3")
    assert result.exit_code == 0
    assert f"* baseline: `{player} run old, revision aaaa`\n" in result.stdout
    assert f"* candidate: `{player} run new, revision bbbb`\n" in result.stdout
    assert result.stdout.count("**Warning:**") == 1
    assert "* **Warning:** torch version differs: 2.12 and 2.13\n" in result.stdout


# What is not compared


def test_command_that_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('one\\ntwo', flush=True)\nraise SystemExit(7)")
    result = invoke("--baseline", ".", "--runs", "3", sys.executable, "train.py")
    assert (result.exit_code, result.stdout) == (1, "")
    said = result.stderr.replace("baseline-01", "candidate-01")
    assert "Error: candidate-01 ended with exit code 7: " in said
    assert "\nThe last lines that it wrote:\n  one\n  two\n" in said


def test_command_that_fails_has_the_last_word(tmp_path: Path) -> None:
    write(tmp_path, "train.py", TRAINING + "raise ValueError('the data is broken')\n")
    result = invoke("--baseline", ".", "--runs", "3", "train.py")
    assert result.exit_code == 1
    assert "\n  ValueError: the data is broken\n" in result.stderr
    assert "Where the step goes" not in result.stderr


def test_command_that_does_not_exist() -> None:
    result = invoke("--baseline", ".", "no-such-dir/python", "train.py")
    assert result.exit_code == 1
    assert "Error: can't run no-such-dir/python train.py: " in result.stderr
    assert "No such file or directory" in result.stderr


def test_output_is_shown_on_demand(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print('it says this')\nraise SystemExit(7)")
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["gate", "--baseline", ".", "--show-output", "train.py"])
    output, errors = capfd.readouterr()
    assert output == ""
    assert "\nit says this\n" in errors
    assert "The last lines" not in errors


def test_program_without_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    result = invoke("--baseline", ".", "train.py")
    assert result.exit_code == 1
    begin = r"Error: \w+-01 had no step, so there is nothing to compare: "
    assert re.search(f"{begin}this process did not import torch", result.stderr)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({"gpus": ["H100"]}, {"gpus": ["A100"]}, "ran on another GPU than"),
        ({"host": "a"}, {"host": "b"}, "ran on another machine than"),
        ({"world_size": 2}, {"world_size": 4}, "ran on other ranks than"),
    ],
)
def test_what_is_not_the_same(
    player: Path, old: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    record("old", *[100.0] * 3, **old)
    record("new", *[100.0] * 3, **new)
    result = play(player, "--runs", "3")
    assert (result.exit_code, result.stdout) == (1, "")
    assert reason in result.stderr


def test_trainings_of_different_length(player: Path) -> None:
    record("old", *[100.0] * 3)
    for number in range(1, 4):
        save(made_run([100 * MS] * 15), f"new-{number:02}.gpurun")
    result = play(player, "--runs", "3")
    assert result.exit_code == 1
    assert re.search(r"has (15|20) steps and \w+-01 (15|20)\.", result.stderr)


def nvidia_smi(folder: Path, rows: str) -> None:
    path = folder / "player" / "nvidia-smi"
    path.write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/asked\nprintf '{rows}'\n")
    path.chmod(0o755)


def test_other_users_of_the_gpu(
    player: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("old", "new"):
        record(side, *[100.0] * 3, gpus=["H100"])
    monkeypatch.setenv("PATH", f"{player.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    nvidia_smi(tmp_path, "4711, python\\n")
    result = play(player, "--runs", "3")
    assert result.exit_code == 1
    assert "Error: other processes use the GPU: python (4711)." in result.stderr
    assert (tmp_path / "asked").read_text().startswith("-i 2,3 --query-compute-apps=pid,")
    nvidia_smi(tmp_path, "")
    result = play(player, "--runs", "3")
    assert result.exit_code == 0
    assert "whether others used the GPU" not in result.stdout


def test_other_users_of_the_gpu_are_unknown_without_nvidia_smi(
    player: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("old", "new"):
        record(side, *[100.0] * 3, gpus=["H100"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", f"{player.parent}:{os.environ['PATH']}")
    nvidia_smi(tmp_path, "no devices were found\\n")
    result = play(player, "--runs", "3")
    assert result.exit_code == 0
    assert "* **Warning:** it is not known whether others used the GPU" in result.stdout


def test_packages_that_are_installed_in_editable_mode_from_here_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "mine-1.0.dist-info"
    write(tmp_path, "site/mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\n")
    write(
        tmp_path,
        "site/mine-1.0.dist-info/direct_url.json",
        json.dumps({"url": Path.cwd().as_uri(), "dir_info": {"editable": True}}),
    )
    monkeypatch.syspath_prepend(str(info.parent))

    assert editable_packages(Path.cwd()) == ["mine"]
    assert editable_packages(tmp_path / "site") == []
    (info / "direct_url.json").write_text("not JSON")
    assert editable_packages(Path.cwd()) == []


def test_directory_whose_code_does_not_run(tmp_path: Path) -> None:
    write(tmp_path, "work/train.py", TRAINING)
    (tmp_path / "old").mkdir()
    os.chdir(tmp_path / "work")
    result = invoke("--baseline", "../old", str(tmp_path / "work" / "train.py"))
    assert result.exit_code == 1
    assert f"is that of {tmp_path / 'work'}, so it is not the code of that" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["train.py"], "Missing option '--baseline'"),
        (["--baseline", "."], "Missing argument"),
        (["--baseline", "", "train.py"], "the baseline is empty"),
        (["--baseline", "../nowhere", "train.py"], "there is no directory ../nowhere"),
        (["--baseline", ".", "--runs", "2", "train.py"], "--runs"),
        (["--baseline", ".", "--fail-if-slower", "-3", "train.py"], "--fail-if-slower"),
        (["--baseline", ".", "--fail-if-slower", "nan", "train.py"], "from 0 on, got nan"),
        (["--baseline", ".", "--margin", "inf", "train.py"], "from 0 on, got inf"),
        (["--baseline", ".", "--max-runs", "4", "train.py"], "at least the 5 of the first look"),
        (["--baseline", ".", "make"], "can't see which program of 'make'"),
        (["--baseline", "python 'a", "train.py"], "can't split"),
        (["--baseline", ".", "--json", "no/a.json", "train.py"], "no is not a directory"),
    ],
)
def test_wrong_usage(arguments: list[str], reason: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in " ".join(result.stderr.split())


def test_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    result = invoke("--baseline", ".", "-o", "kept", "train.py")
    assert result.exit_code == 1
    assert "Error: kept: File exists" in result.stderr


# Interrupted


def is_alive(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX"


def until(holds: Any) -> None:
    deadline_s = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@contextlib.contextmanager
def gate_under_way(
    folder: Path, *before: str
) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A gate whose program waits forever, and the ids of that and of a process that it started.

    Args:
        before: the words of a command line that ends in the gate's.
    """
    write(
        folder,
        "train.py",
        """
        import os, signal, subprocess
        child = subprocess.Popen(["sleep", "600"])
        with open("pids.part", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename("pids.part", "pids")
        signal.pause()
        """,
    )
    gate = subprocess.Popen(
        [*before, sys.executable, *GATE, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: (folder / "pids").exists())
        yield gate, [int(pid) for pid in (folder / "pids").read_text().split()]
    finally:
        gate.kill()
        gate.communicate()


def test_interrupted_gate_leaves_no_process(tmp_path: Path) -> None:
    with gate_under_way(tmp_path) as (gate, pids):
        gate.send_signal(signal.SIGINT)
        output, errors = gate.communicate()
        assert (gate.returncode, output) == (130, "")
        assert "Interrupted: 0 runs were made, which is no result" in errors
        until(lambda: not any(map(is_alive, pids)))


def test_terminated_gate_leaves_no_process(tmp_path: Path) -> None:
    """And a signal that is ignored stays ignored."""
    ignoring = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    with gate_under_way(tmp_path, *ignoring) as (gate, pids):
        gate.send_signal(signal.SIGHUP)  # which Python would handle before the other one
        gate.send_signal(signal.SIGTERM)
        output, errors = gate.communicate()
        assert (gate.returncode, output) == (143, "")
        assert "Interrupted" not in errors
        until(lambda: not any(map(is_alive, pids)))


def test_a_signal_that_comes_while_a_program_starts_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*words: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    write(Path(), "train.py", "import signal; signal.pause()")
    with pytest.raises(KeyboardInterrupt):
        CommandSide("train.py").record("baseline-01", Path())
    assert started[0].returncode is not None
