# SPDX-License-Identifier: Apache-2.0
"""Files are written by `atomic_write`, which follows no link that somebody has put in the way."""

import ast
import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyinstrument_gpu.atomic_file import atomic_write
from tests.test_import_circles import FOLDER

OTHERWISE = {
    "atomic_file.py": ['open(path, "wb")', 'part.open("xb")'],
    # A descriptor of `mkstemp`, in a directory that only the user may write.
    "disk_cache.py": ['open(file, "wb")'],
    # In a folder that was made for it alone.
    "aspects/operations/torch_profiler.py": ['gzip.open(file, "wb")'],
    # What the command writes while it runs.
    "gate/sides.py": ['path.open("xb")'],
    # Memory that has no name.
    "metrics/kernels.py": ['open(os.memfd_create(f"pyinstrument_gpu {name}"), "w+b")'],
    # In a folder that was made for it alone.
    "trial/working_copy.py": ["target.symlink_to(path)", "link.symlink_to(target)"],
    # Where GitHub wants more behind what is there.
    "cli/gate.py": ['open(page, "a", encoding="utf-8")'],
}
METHODS = ("write_text", "write_bytes", "NamedTemporaryFile", "touch", "symlink_to", "mkfifo")


def writes(path: Path) -> Iterator[str]:
    """The calls of a file that open another to write it."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            words = [*node.args, *(keyword.value for keyword in node.keywords)]
            modes = [one.value for one in words if isinstance(one, ast.Constant)]
            is_mode = any(re.fullmatch(r"[rb]*[wax+][bt+]*", str(mode)) for mode in modes)
            flags = any("O_WRONLY" in ast.unparse(one) for one in node.args)
            if name in METHODS or (name == "open" and (is_mode or flags)):
                yield str(ast.get_source_segment(text, node))


def test_files_are_written_in_one_way() -> None:
    found = {
        path.relative_to(FOLDER).as_posix(): calls
        for path in FOLDER.rglob("*.py")
        if (calls := [call for call in writes(path) if "os.devnull" not in call])
    }
    assert found == OTHERWISE


def test_what_others_have_put_under_a_name_is_replaced(tmp_path: Path) -> None:
    precious, name = tmp_path / "precious", tmp_path / "name"
    for is_there in (True, False):
        if is_there:
            precious.write_text("precious")
        name.symlink_to(precious)
        with atomic_write(name, follow_links=False) as file:
            file.write(b"new")
        assert name.read_text() == "new" and not name.is_symlink()
        assert precious.exists() == is_there
        assert not is_there or precious.read_text() == "precious"
        precious.unlink(missing_ok=True)
        name.unlink()


def test_a_full_disk_is_told_with_the_name_that_was_asked_for(tmp_path: Path) -> None:
    name = tmp_path / "page.html"
    with pytest.raises(OSError) as raised, atomic_write(name):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(name)
    assert [*tmp_path.iterdir()] == []
