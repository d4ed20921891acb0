# SPDX-License-Identifier: Apache-2.0
"""The templates of the page and what they are filled with beside data: styles, scripts, colours."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.errors import needed_for
from pyinstrument_gpu.export.labels import color_of
from pyinstrument_gpu.page.bars import css_color, ink_on
from pyinstrument_gpu.page.redaction import Redaction
from pyinstrument_gpu.parts.words import printable


@functools.cache
def asset(name: str) -> str:
    """The text of a style, a script or a licence."""
    return (resources.files(__package__) / "assets" / name).read_text("utf-8").rstrip("\n")


def template(name: str, redaction: Redaction | None = None) -> Any:
    """A template of jinja2, whose texts pass through a redaction if there is one.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
    with needed_for("the page", "jinja2"):
        import jinja2  # noqa: F401
    return _environment(redaction).get_template(name)


@functools.lru_cache(maxsize=2)
def _environment(redaction: Redaction | None) -> Any:
    """Return the environment, which is kept: compiling templates takes longer than filling them."""
    import jinja2

    @jinja2.pass_context
    def color(context: Any, name: str) -> str:
        return css_color(context["colors"][name])

    def written(value: Any) -> Any:
        if type(value) is not str:
            return value
        # Names may hold what does not print, or turns the direction of text around.
        return printable(value if redaction is None else redaction(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pyinstrument_gpu.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=written,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "color": color,
        "own_color": lambda name: css_color(color_of(name)),  # of what is no phase
        "ink": lambda color: ink_on(color) if color.startswith("#") else "inherit",
        "names": names_of,
    }
    return environment
