# SPDX-License-Identifier: Apache-2.0
"""A page for strangers: it names no host and no user, and no path above the project."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SyncSite
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.page.redaction import Redaction
from tests.helpers.made_runs import syncs_of
from tests.helpers.run_writer import save
from tests.page.runs import training
from tests.page.test_page import Reading

ENVIRONMENT = {
    "host": "gpu-07.lab.example",
    "cwd": "/home/Jörg Müller/secret client/proj",
    "program_folder": "/home/Jörg Müller/secret client/proj/scripts",
    "command": ["/home/Jörg Müller/conda/bin/python", "train.py", "--data=/mnt/vault 7/x.bin"],
    "arguments": ["/home/Jörg Müller/secret client/proj/scripts/train.py", "--user=Jörg Müller"],
}
HIDDEN = ("Jörg", "gpu-07", "lab.example", "secret", "conda")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f (/home/Jörg Müller/secret client/proj/scripts/a.py:3) is", "f (a.py:3) is"),
        ("/home/Jörg Müller/secret client/proj/models/net.py", "models/net.py"),
        ("/home/Jörg Müller/secret client/other/net.py", ".../net.py"),
        ("/home/Jörg Müller/conda/lib/site-packages/torch/x.py:9", "site-packages/torch/x.py:9"),
        ("/usr/lib/python3/dist-packages/numpy/a.py", "dist-packages/numpy/a.py"),
        ("PATH=/usr/bin:/opt/tool/bin", "PATH=.../bin:.../bin"),
        ("'/mnt/vault/x.bin', \"/scratch/jm/y\"", "'.../x.bin', \".../y\""),
        ("~/x/y, a/b/c, 3/4, ms/step, https://example.org/a/b", "~/x/y, a/b/c, 3/4, ms/step, https://example.org/a/b"),
        ("rank 3 on gpu-07.lab.example, gpu-07: late", "rank 3 on host-1, host-1: late"),
        ("gpu-071 and xgpu-07", "gpu-071 and xgpu-07"),
        ("--user=Jörg Müller, torchinductor_Jörg Müller", "--user=user, torchinductor_user"),
        ("jörg müller@gpu, test_Jörg Müller/x", "user@gpu, test_Jörg Müller/x"),
        ("file:///home/Jörg Müller/conda/x.py, file:///a/b/x.py", ".../x.py, .../x.py"),
        ("--out=/home/carol, /home/carol/a/b.py", "--out=..., .../b.py"),
        ("epoch/home/Jörg Müller/x, /mnt/home/carol", "epoch/home/Jörg Müller/x, ..."),
        ("GPU-07.Lab.example", "host-1"),
    ],
)  # fmt: skip
def test_what_stands_in_its_place(text: str, expected: str) -> None:
    assert Redaction([ENVIRONMENT])(text) == expected


def test_where_nothing_is_known_paths_are_still_shortened() -> None:
    assert Redaction([{}])("run /a/b/c.py on host") == "run .../c.py on host"
    assert Redaction([{"cwd": "/", "host": ""}])("https://x.org, /a/b") == "https://x.org, .../b"


def test_hosts_are_told_from_one_another() -> None:
    redaction = Redaction([{"host": "alpha"}, {"host": "beta-2"}, {"host": "alpha"}])
    assert redaction("on host alpha, beta-2 late") == "on host host-1, host-2 late"


@pytest.mark.parametrize("host", ["data", "0", "10.0.0.5", "name", "steps", "a", ".", "runs"])
def test_a_host_or_a_user_that_is_called_as_something_else_spoils_nothing(host: str) -> None:
    pages = []
    for name in ("zz-99", host):
        told = {"host": name, "cwd": f"/home/{name}/opt", "command": [f"/{name}"]}
        run = training(environment=told)
        redaction = Redaction([told])
        text = html_page([redaction.run(run)], ["train.gpurun"], redaction=redaction)
        pages.append(Reading(text))
    plain, public = pages
    assert public.data == plain.data
    assert public.rows() == plain.rows()
    identified = [[of.get("id"), of.get("href")] for _, of in plain.elements]
    assert identified == [[of.get("id"), of.get("href")] for _, of in public.elements]
    for text in ("epoch/data/load 10 of 0.5", f"outer/{host}", f"x-{host}/y"):
        assert redaction(text) == text


def test_a_fact_that_begins_as_a_path_is_one_to_its_end() -> None:
    words = ["/mnt/vault seven/cust omer/x.bin", "--data=/mnt/a(b)/c,d/e", "/opt/O'Brien/proj"]
    changed = Redaction([{}]).facts({"command": words, "host": "b", "cores": 2, "cwd": "/a b/c"})
    assert changed["command"] == [".../x.bin", "--data=.../e", ".../proj"]
    assert (changed["cores"], changed["cwd"]) == (2, ".../c")


def test_the_name_of_a_user_goes_where_it_ends_a_path() -> None:
    facts = {"cwd": "/home/alice", "host": "b"}
    words = ["--out=/home/alice", "/home/bob/", "/tmp/alice", "/shm/alice-x", "/home/alice/p/t.py"]
    redaction = Redaction([facts])
    changed = redaction.facts({**facts, "command": words})
    assert changed["cwd"] == "..."
    assert changed["command"] == ["--out=...", "...", ".../user", ".../user-x", "p/t.py"]
    for text, expected in (
        ("/users/bob: denied", "...: denied"),
        ("/lustre/users/bob/x/y.py", ".../y.py"),
        ("in /tmp/alice: x", "in .../user: x"),
        ("../../alice/data", "../../user/data"),
        ("outer/alice", "outer/alice"),
    ):
        assert redaction(text) == expected


def test_a_public_page_has_none_of_it_and_another_has(tmp_path: Path) -> None:
    names = ["a/home/x", "data", "outer/test"]
    run = training(
        names=names, environment=ENVIRONMENT, notes=["no file /home/Jörg Müller/conda/x.so"]
    )
    run.syncs = syncs_of(run)
    sites = (
        *run.syncs.sites,
        SyncSite("/home/Jörg Müller/secret client/lib/f.py", 3, "g", SyncKind.ITEM, False),
    )
    run.syncs = type(run.syncs)(sites, run.syncs.events, run.syncs.watched_ns)
    file = tmp_path / "train.gpurun"
    save(run, file)
    texts = {}
    for options in ([], ["--public"]):
        page = tmp_path / f"page{len(options)}.html"
        made = CliRunner().invoke(main, ["report", "--html", *options, "-o", str(page), str(file)])
        assert made.exit_code == 0, made.output
        texts[bool(options)] = page.read_text("utf-8")
    for hidden in HIDDEN:
        forms = {hidden, html.escape(hidden), json.dumps(hidden)[1:-1]}
        assert any(form in texts[False] for form in forms), hidden
        assert not any(form in texts[True] for form in forms), hidden
    assert str(tmp_path) not in texts[True]
    public, private = Reading(texts[True]), Reading(texts[False])
    assert public.rows() == private.rows()
    assert public.data["runs"][0]["series"] == private.data["runs"][0]["series"]


def test_it_is_an_option_of_the_page(tmp_path: Path) -> None:
    file = tmp_path / "train.gpurun"
    save(training(), file)
    refused = CliRunner().invoke(main, ["report", "--public", str(file)])
    assert refused.exit_code == 2
    assert "--public is for --html" in refused.output
