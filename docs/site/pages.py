# SPDX-License-Identifier: Apache-2.0
"""The pages of the site that do not lie in docs/, and the links to them. A hook of MkDocs.

Pages are written to be read in the repository: their links lead from file to file, also to files
outside docs/. Here these become pages of the site, and the links are made to fit. README.md is the
front page. Behind each table of docs/api.md stands the reference of its names, from docstrings.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path
from docs.site.commands import commands_page  # noqa: E402

API_PAGE = "api.md"
COMMANDS_PAGE = "reference/command-line.md"

_FOR_AGENTS = (
    "`pyinstrument-gpu mcp FOLDER` serves recorded runs to agents (Model Context Protocol)."
)

_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_PUBLIC_NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_TABLE_AFTER_COMMENT = re.compile(r"^(<!-- .* -->)\n(?=\|)", re.MULTILINE)
_COMMENT_AFTER_TABLE = re.compile(r"^(\|.*)\n(?=<!-- )", re.MULTILINE)

# What GitHub takes as a block within an item of a list, and Markdown only at four columns.
_BLOCK_IN_ITEM = re.compile(r"^  ```.*?^  ```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere or are generated, and the files to which pages link."""
    for path in _pages_elsewhere():
        files.append(File.generated(config, _site_path(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, COMMANDS_PAGE, content=commands_page()))
    for path in _linked_files(files):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "llms.txt", content=llms_text(config)))
    return files


def llms_text(config: Any) -> str:
    """The pages by the tabs of the site, each with its first sentence, as llmstxt.org has it."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", "", _FOR_AGENTS]
    for tab in config["nav"]:
        for title, pages in tab.items():
            lines += ["", f"## {title}", ""]
            lines += [_llms_line(name, path) for page in pages for name, path in page.items()]
    return "\n".join([*lines, ""])


def _llms_line(name: str, path: str) -> str:
    file = ROOT / _repository_path(path)
    text = _FENCE.sub("", file.read_text("utf-8")) if file.is_file() else ""
    prose = [one for one in text.split("\n\n") if re.match(r"[A-Z`*]\S* ", one)]
    first = re.split(r"(?<=\.) (?=[A-Z`])", " ".join(prose[0].split()))[0] if prose else ""
    said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).rstrip(":.")
    return f"- [{name}]({path.removesuffix('.md')}.html){f': {said}' if said else ''}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page in the words of Python-Markdown, with links that lead through the site."""
    if page.file.src_uri == COMMANDS_PAGE:
        return markdown
    if page.file.src_uri == API_PAGE:
        markdown = with_reference(markdown)
    markdown = _TABLE_AFTER_COMMENT.sub(r"\1\n\n", markdown)
    markdown = _COMMENT_AFTER_TABLE.sub(r"\1\n\n", markdown)
    markdown = _BLOCK_IN_ITEM.sub(lambda block: re.sub("^", "  ", block[0], flags=re.M), markdown)
    path = _repository_path(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)
    if folder.startswith(("benchmarks", "tests")) or path == "CHANGELOG.md":
        page.meta["search"] = {"boost": 0.2}  # what the pages of the navigation say comes first

    def through_the_site(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        if re.match(r"\w+:|#", target):
            return link[0]
        file, hash_sign, anchor = target.partition("#")
        to = _site_path(posixpath.normpath(posixpath.join(posixpath.dirname(path), file)))
        return f"{before}{posixpath.relpath(to, folder or '.')}{hash_sign}{anchor}{after}"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(through_the_site, part) for part in parts[::2]]
    return "".join(parts)


def with_reference(text: str) -> str:
    """docs/api.md with what each name's docstring says behind the table that lists it."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    for i, part in enumerate(parts):
        names = _PUBLIC_NAME.findall(part)
        parts[i] = "\n".join([part, *(f"::: pyinstrument_gpu.{name}\n" for name in names)])
    return "".join(parts)


def _pages_elsewhere() -> list[str]:
    places = ("*.md", "benchmarks/**/*.md", "examples/**/*.md", "tests/*/*.md")
    return sorted(path.relative_to(ROOT).as_posix() for one in places for path in ROOT.glob(one))


def _linked_files(files: Files) -> list[str]:
    """Files outside docs/ that are no pages: figures, pictures, programs and the licence."""
    found = set()
    for file in files.documentation_pages():
        if file.src_uri == COMMANDS_PAGE:
            continue
        path = _repository_path(file.src_uri)
        for _, target, _ in _LINK.findall(_FENCE.sub("", file.content_string)):
            if not re.match(r"\w+:|#", target):
                found.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
    return sorted(
        path
        for path in (target.partition("#")[0] for target in found)
        if not path.startswith(("docs/", "../")) and not path.endswith(".md")
        if (ROOT / path).is_file()
    )


def _site_path(path: str) -> str:
    """Where a file of the repository is in the site's sources."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _repository_path(site_path: str) -> str:
    if site_path == "index.md":
        return "README.md"
    return f"docs/{site_path}" if (ROOT / "docs" / site_path).exists() else site_path
