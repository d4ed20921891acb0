# SPDX-License-Identifier: Apache-2.0
"""The lines of a loop that keep something of each pass."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pyinstrument_gpu.aspects.setup_calls.kept_values import KeptValue, kept_values

LOOP = """
total = 0
for x in loader:
    loss = model(x)
{body}
print(total)
"""


def kept(tmp_path: Path, *body: str, line: int = 4) -> list[KeptValue] | None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(body="\n".join(f"    {one}" for one in body)))
    return kept_values(str(file), line)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("total = total + loss", "total"),
        ("total = loss + total", "total"),
        ("total += loss", "total"),
        ("self.losses.append(loss)", "self.losses"),
        ("outputs.append(output.detach())", "outputs"),
        ("rows.extend(batch)", "rows"),
        ("rows.append((step, loss))", "rows"),
        ("if step: total += loss", "total"),
        ("total += loss / len(loader)", "total"),
        ("total += loss * x.size(0)", "total"),
        ("total = total + loss + penalty", "total"),
        ("total += losses.sum()", "total"),
        ("rows.append(('train', loss))", "rows"),
        ("losses[name].append(loss)", "losses"),
    ],
)
def test_what_keeps_something_is_named(tmp_path: Path, statement: str, name: str) -> None:
    assert kept(tmp_path, "loss.backward()", statement) == [KeptValue(name, 6)]


def test_a_program_is_read_without_its_warnings_and_however_deep_it_is(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(tmp_path, "print('\\d')", "outputs.append(loss)") == [KeptValue("outputs", 6)]
        long = " + ".join(["x"] * 2000)
        assert kept(tmp_path, "total += loss", f"y = {long}") == [KeptValue("total", 5)]


@pytest.mark.parametrize(
    "body",
    [
        ["total += loss.item()"],
        ["total += float(loss)"],
        ["total += 1"],
        ["total = total + loss.item() * len(x)"],
        ["names.append(f'{step}')"],
        ["rows.append((step, loss.item()))"],
        ["parts = []", "parts.append(loss)"],  # begins anew in each pass
        ["queue.append(loss)", "queue.pop()"],
        ["queue.append(loss)", "del queue[0]"],
        ["queue.append(loss)", "queue.clear()"],
        ["total = other + loss"],
        ["optimizer.step()"],
        ["seen += y.size(0)"],
        ["seen += y.shape[0]"],
        ["elapsed += time.time() - began"],
        ["count += (output.argmax(1) == y).sum().item()"],
        ["y = x.add(noise)"],  # makes something new
        ["a, b = f(x)", "a += b"],
        ["rows: list = []", "rows.append(loss)"],
        ["for part in parts: part += loss"],
        ["if (rows := f(x)): rows.append(loss)"],
        ["with f() as rows: rows.append(loss)"],
        ["window.append(loss)", "window[:] = window[-10:]"],
        ["window.append(loss)", "window.remove(loss)"],
        ["def hook(x):", "    kept.append(x)"],  # a function of its own
    ],
)
def test_numbers_text_and_what_begins_anew_are_not(tmp_path: Path, body: list[str]) -> None:
    assert kept(tmp_path, *body) == []


def test_it_is_the_innermost_loop_that_counts(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "def main():\n"
        "    for epoch in range(3):\n"
        "        kept.append(epoch)\n"
        "        for x in loader:\n"
        "            step(x)\n"
        "def step(x):\n"
        "    seen.append(x)\n"
    )
    assert kept_values(str(file), 5) == []
    assert kept_values(str(file), 3) == [KeptValue("kept", 3)]
    assert kept_values(str(file), 7) is None  # a function without a loop
    assert kept_values(str(file), 99) is None


def test_what_is_no_python_or_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for x in\n")
    with pytest.raises(SyntaxError):
        kept_values(str(file), 1)
    file.write_text("#" * 300_000)
    with pytest.raises(ValueError, match="too large"):
        kept_values(str(file), 1)
    with pytest.raises(OSError, match="gone"):
        kept_values(str(tmp_path / "gone.py"), 1)
