# SPDX-License-Identifier: Apache-2.0
"""No secret reaches what is written."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.gate.sides import CommandSide
from pyinstrument_gpu.recording.environment import gather, variables
from pyinstrument_gpu.recording.secrets import masked, masked_call, masked_words
from tests.helpers.launched import launched

PROGRAM = """
import pyinstrument_gpu as pig
for _ in pig.gpu_steps(range(3)):
    with pig.gpu_phase("forward"):
        pass
"""


@pytest.mark.parametrize(
    ("words", "masked_ones"),
    [
        ("--api-key=SECRET --lr=3", "--api-key=*** --lr=3"),
        ("--api-key SECRET train.py", "--api-key *** train.py"),
        ("--password -SECRET", "--password ***"),
        ("--password 12345", "--password ***"),
        ("-DapiKey=SECRET --accessToken SECRET", "-DapiKey=*** --accessToken ***"),
        ("--hf-token --lr 3", "--hf-token --lr 3"),
        (
            "wandb.api_key=SECRET +auth.login='a SECRET' lr=3",
            "wandb.api_key=*** +auth.login=*** lr=3",
        ),
        ("logger[0].api_key=SECRET", "logger[0].api_key=***"),
        ("--env=API_KEY=SECRET -e HF_TOKEN=SECRET", "--env=API_KEY=*** -e HF_TOKEN=***"),
        ("""'{"key": "a SECRET", "lr": 3}'""", """'{"key": ***, "lr": 3}'"""),
        ("-H 'Authorization: Bearer SECRET'", "-H 'Authorization: ***'"),
        ("bash -c 'train.py --password SECRET --lr 3'", "bash -c 'train.py --password *** --lr 3'"),
        ("postgres://u:SECRET@h/db", "postgres://***@h/db"),
        ("--db=https://SECRET@h/a https://u:SEC/RET@h", "--db=https://***@h/a https://***@h"),
        ("https://h/a?lr=3&token=SECRET&b=c", "https://h/a?lr=3&token=***&b=c"),
        ("--on-hang https://h.example/a/SECRET x.py", "--on-hang https://h.example/*** x.py"),
        ("--on-hang=https://h.example?SECRET", "--on-hang=https://h.example/***"),
        ("--to https://hooks.example/services/SECRET", "--to https://hooks.example/***"),
        ("--to https://h.example/api/webhooks/SECRET", "--to https://h.example/***"),
    ],
)
def test_what_is_named_as_a_secret_is_masked(words: str, masked_ones: str) -> None:
    found = masked_words(shlex.split(words))
    assert found == shlex.split(masked_ones)
    assert masked_words(found) == found


@pytest.mark.parametrize(
    "token",
    [
        "sk-proj-abcdefgh12345678",
        "ghp_abcdefghijklmnop1234",
        "github_pat_11ABCDEFG_abcdefgh",
        "hf_abcdefghijklmnopqrst",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-1234567890-abcdef",
        "glpat-abcdefghij1234567890",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    ],
)
def test_tokens_of_known_providers_are_masked_wherever_they_are(token: str) -> None:
    assert masked_words([token, f"a={token}", "--b", token]) == ["***", "a=***", "--b", "***"]
    assert masked(f"PATH:{token}") == "PATH:***"


@pytest.mark.parametrize(
    "words",
    [
        "--max-tokens 4096 --tokens=3_000_000 --target-tokens 10B --key-dim 64 use_auth=",
        "--tokenizer gpt2 --author me --passes 3 --compass=n --use-key False",
        "task-with-a-long-name disk-of-many-things http://h:8080/a@v1 git+https://h/a@main",
        "optim.lr=1e-3 'data.mix={a:0.5,b:0.5}' --out=/data/run-1/k=v --betas 0.9 -1",
    ],
)
def test_what_training_programs_count_is_kept(words: str) -> None:
    assert masked_words(shlex.split(words)) == shlex.split(words)


def test_variables_are_recorded_by_exact_names() -> None:
    environment = {
        "PYTHON_DB_DSN": "postgres://u:SECRET@h/db",
        "TORCH_HUB_URL": "https://u:SECRET@h",
        "NCCL_NET_SECRET": "SECRET",
        "PYTHONPATH": "/a:https://u:SECRET@h/wheel",
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }
    assert variables(environment) == {
        "PYTHONPATH": "/a:https://***@h/wheel",
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }


def test_half_a_secret_is_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "x" * 980 + " ghp_" + "SECRET" * 9])
    assert gather()["arguments"] == ["train.py", "x" * 980 + " ***"]


def test_none_reaches_run_file_or_page(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(PROGRAM)
    done = launched(
        tmp_path,
        *("--html", "--on-hang", "https://hooks.example/services/T00/SECRET"),
        *("s.py", "--api-key=SECRET", "--password", "SECRET", "hub.token=SECRET"),
        environment={
            "PYTHON_DB_DSN": "postgres://u:SECRET@h/db",
            "TORCH_HUB_URL": "https://u:SECRET@h",
            "OMP_PLACES": "https://u:SECRET@h",
        },
    )
    assert done.returncode == 0 and "SECRET" not in done.stderr
    for name in ("run.gpurun", "run.html"):
        assert b"SECRET" not in (tmp_path / name).read_bytes()
    environment = Run.load(tmp_path / "run.gpurun").environment
    assert environment["arguments"] == [
        *("s.py", "--api-key=***", "--password", "***", "hub.token=***"),
    ]


def test_arguments_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(**options: Any) -> dict[str, Any]:
        with pig.record(tmp_path / "a.gpurun", overwrite=True, **options) as recording:
            pass
        return dict(recording.run.environment)

    first, second = recorded(arguments=False), recorded()
    assert second.keys() - first.keys() == {"command", "arguments"}
    monkeypatch.setenv("PYINSTRUMENT_GPU_RECORD_ARGUMENTS", "no")
    assert not {"command", "arguments"} & recorded().keys()
    monkeypatch.delenv("PYINSTRUMENT_GPU_RECORD_ARGUMENTS")
    with pytest.raises(TypeError, match="arguments must be bool, got 1"):
        pig.record(arguments=1)  # type: ignore[arg-type]


def test_call_of_a_hang_is_named_without_them() -> None:
    assert masked_call("https://h.example/a/SECRET") == "https://h.example/***"
    call = "curl -H 'Authorization: Bearer SECRET' -d @- https://h.example/SECRET"
    assert masked_call(call) == "curl -H 'Authorization: ***' -d @- https://h.example/***"


def test_sides_of_a_gate_are_named_without_them() -> None:
    side = CommandSide("WANDB_API_KEY=SECRET LR=3 python train.py --password SECRET")
    assert side.text == "WANDB_API_KEY='***' LR=3 python train.py --password '***'"
    assert json.dumps(side.command.words).count("SECRET") == 1  # it is run with it
