# SPDX-License-Identifier: Apache-2.0
"""`%load_ext pyinstrument_gpu`: the magic `%%gpu_phases`, which records a cell of a notebook."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.aspects.syncs.watching import watch_syncs
from pyinstrument_gpu.auto import AutoPhases
from pyinstrument_gpu.errors import PyinstrumentGpuError
from pyinstrument_gpu.patching.problems import warn_of
from pyinstrument_gpu.recording.recording import Recording, record

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run

_DEFAULT_NAME = "_run"
_WIDTH = 100


def load_ipython_extension(shell: Any) -> None:
    """Load the extension for `%load_ext pyinstrument_gpu`, with IPython's shell."""
    parser = _parser()

    def gpu_phases(line: str, cell: str) -> None:
        __tracebackhide__ = True
        _record_cell(shell, parser.parse_argstring(line), line, cell)

    gpu_phases.__doc__ = parser.format_help()
    shell.register_magic_function(gpu_phases, magic_kind="cell")


def _parser() -> Any:
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser(
        prog="%gpu_phases",  # which is given one more mark
        description="Record the cell with automatic phases and steps, and show the short report. "
        "An exception of the cell stays as it is.",
    )
    add = parser.add_argument
    add("name", nargs="?", default=_DEFAULT_NAME, help="variable that gets the run")
    add(
        *("-o", "--output"),
        metavar="RUN",
        help="write the run to this file rather than keeping it in memory; what an earlier "
        "execution of this kernel has recorded there is replaced",
    )
    add("--overwrite", action="store_true", help="replace any other run file, too")
    add("--page", action="store_true", help="show the page as well")
    add("-q", "--quiet", action="store_true", help="show nothing")
    return parser


def _record_cell(shell: Any, options: Any, line: str, cell: str) -> None:
    __tracebackhide__ = True  # of no interest in a traceback of the cell
    from IPython.core.error import UsageError

    if not options.name.isidentifier():
        raise UsageError(f"%%gpu_phases: {options.name!r} is no name of a variable")
    code = _compiled(shell, line, cell)
    recorded = ExitStack()
    try:
        recording = recorded.enter_context(record(options.output, overwrite=options.overwrite))
    except PyinstrumentGpuError as error:
        reason = str(error).replace("overwrite=True", "--overwrite")
        raise UsageError(f"%%gpu_phases: nothing is recorded: {reason}") from None
    recording._give_way = lambda: _give_way(recording)
    try:
        with recorded, _phases_of(recording), watch_syncs():
            for part in code:
                exec(part, shell.user_ns)
    finally:
        _show(shell, recording, options)


def _give_way(recording: Recording) -> None:
    recording._finish_if_mine()
    warn_of("%%gpu_phases: the cell has started a recording of its own, so this one ended there")


@contextmanager
def _phases_of(recording: Recording) -> Iterator[None]:
    phases = AutoPhases()
    phases.install()
    try:
        yield
    finally:
        phases.remove()
        recording.facts.update(phases.facts())
        warn_of(*phases.problems())


def _compiled(shell: Any, line: str, cell: str) -> list[CodeType]:
    """The cell as IPython compiles it: with its magics, and showing the value of the last line."""
    source = "\n" + shell.transform_cell(cell)  # the line of the magic counts, too
    number = len(shell.history_manager.input_hist_raw) - 1
    file = shell.compile.cache(f"%%gpu_phases {line}{source}", number)
    tree = shell.transform_ast(shell.compile.ast_parse(source, file))
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    code = [shell.compile(tree, file, "exec")]
    return [*code, *(shell.compile(ast.Interactive([one]), file, "single") for one in last)]


def _show(shell: Any, recording: Recording, options: Any) -> None:
    """Hand over the run and show it. Never raises: the cell may have raised already."""
    from IPython.display import display, publish_display_data

    from pyinstrument_gpu.page.notebook import run_html

    try:
        run: Run = recording.run
        shell.push({options.name: run})
        if options.quiet:
            return
        text = run.report(file=options.output, width=_WIDTH, color=False)
        html = run_html(run, options.name)
        publish_display_data({"text/plain": text, "text/html": html})
        if options.page:
            display(run.page(file=options.output))
    except Exception as error:
        print(f"%%gpu_phases: the run can't be shown: {error}", file=sys.stderr)
