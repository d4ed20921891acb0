# SPDX-License-Identifier: Apache-2.0
"""The Python snippets of the pages are complete, and those on the use of the package run."""

import ast
import builtins
import re
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
RUN = ("docs/metrics.md", "docs/modules.md", "docs/phases.md", "docs/waits.md")
"""Pages whose snippets need nothing but the package and the reader's own names."""
READERS_OWN = {"model", "loader", "optimizer", "loss_function", "loss_mesh"}
SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
SNIPPET = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """Snippets below one heading, which are read in order: each may use names of those before."""

    title: str
    snippets: list[str]


def sections(page: str) -> list[Section]:
    before, *parts = SECTION.split((ROOT / page).read_text("utf-8"))
    texts = [("beginning", before), *zip(parts[::2], parts[1::2], strict=True)]
    found = [
        Section(title, [dedent(code) if indent else code for indent, code in SNIPPET.findall(text)])
        for title, text in texts
    ]
    return [section for section in found if section.snippets]


def bound_and_used(snippet: str) -> tuple[set[str], set[str]]:
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(ast.parse(snippet)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.alias(name=name, asname=given):
                bound.add(given or name.partition(".")[0])
    return bound, used


@pytest.mark.parametrize("page", PAGES)
def test_every_name_is_imported_or_defined_or_the_readers_own(page: str) -> None:
    missing = []
    for title, snippets in sections(page):
        known = READERS_OWN | {*dir(builtins), "__name__"}
        for snippet in snippets:
            try:
                bound, used = bound_and_used(snippet)
            except SyntaxError as error:
                missing.append((title, f"{error}: {error.text}"))
                continue
            known |= bound
            missing += [(title, name) for name in sorted(used - known)]
    assert missing == []


def readers_own() -> dict[str, Any]:
    """A small model, and what trains it."""
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attn = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.attn(x)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    return {
        "model": model,
        "loader": [(torch.rand(4, 8), torch.arange(4)) for _ in range(8)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_function": torch.nn.CrossEntropyLoss(),
        "loss_mesh": None,
    }


@pytest.mark.parametrize("page", RUN)
def test_snippets_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sections(page), f"{page} has no snippet"
    for number, (_, snippets) in enumerate(sections(page)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        variables = {"__name__": "snippet", **readers_own()}
        assert {*variables} - {"__name__"} == READERS_OWN
        for snippet in snippets:
            exec(compile(snippet, page, "exec"), variables)
