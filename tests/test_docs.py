# SPDX-License-Identifier: Apache-2.0
"""Links between the pages, and to files and headings, lead somewhere, the pages stay short, and the
site can be built."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyinstrument_gpu.core.aspect import DocumentAspect, aspects

ROOT = Path(__file__).parents[1]
PLACES = ("docs", "benchmarks", "examples", "tests")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", *(f"{place}/**/*.md" for place in PLACES))
    for page in ROOT.glob(pattern)
)

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)

PUBLIC_NAMES = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text("utf-8"), re.M)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives the headings of a page, which are unlike one another here."""
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(prose(ROOT / page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links to {target}, which does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(prose(file)), f"{page}: no heading is {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_pages_are_in_the_navigation(page: str) -> None:
    lines = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    assert f": {page.removeprefix('docs/')}\n" in lines, f"add {page} to `nav` in mkdocs.yml"


@pytest.mark.parametrize(("for_contributors", "most"), [(True, 14_000), (False, 22_000)])
def test_pages_stay_short(for_contributors: bool, most: int) -> None:
    """Of all pages for contributors, or for users, by the site's navigation."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    parts = re.findall(r"^  - (.+):\n((?: {6}.*\n)+)", navigation, re.M)
    assert "Contribute" in dict(parts)
    files = [
        ROOT / "docs" / page
        for title, pages in parts
        if (title == "Contribute") == for_contributors
        for page in re.findall(r": (\S+\.md)$", pages, re.M)
    ]
    # README.md and the reference of the command line are no files in docs/.
    assert sum(len(file.read_text("utf-8").split()) for file in files if file.is_file()) <= most


def test_each_document_of_an_aspect_is_in_the_page_on_the_run_file() -> None:
    page = (ROOT / "docs" / "run-file.md").read_text("utf-8")
    kept = [one for one in aspects() if isinstance(one, DocumentAspect)]
    shared = {one.written_as or one.name for one in kept if one.block is None}
    table = page.partition("\n## ASPECTS\n")[2].partition("\n## ")[0]
    assert shared <= {*re.findall(r"^\| `(\w+)` \|", table, re.M)}
    for block in (one.block for one in kept if one.block is not None):
        assert f"| {block.value} {block.name} |" in page


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")
    # mkdocs-material prints an advertisement for its successor.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    site = os.environ.get("SITE", tmp_path / "site")
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = Path(site)
    api = (site / "api.html").read_text("utf-8")
    for name in PUBLIC_NAMES:
        assert f'id="pyinstrument_gpu.{name}"' in api, f"the reference lacks {name}"
    # The search works from a folder: its index is a script, and nothing comes from elsewhere.
    assert (site / "search" / "search_index.js").is_file()
    front = (site / "index.html").read_text("utf-8")
    assert re.findall(r'<script src="(?!assets/)([^"]*)', front) == []
    assert '<script src="assets/iframe-worker.js">' in front
    pages = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    assert {"index.html", "report-schema.html"} < set(pages)
    assert all((site / page).is_file() for page in pages)
    commands = (site / "reference" / "command-line.html").read_text("utf-8")
    for command in ("run", "watch", "report", "export", "compare", "gate", "info"):
        assert f'<h2 id="{command}">' in commands, f"the reference lacks the command {command}"
    assert "--fail-if-slower PCT" in commands
