# SPDX-License-Identifier: Apache-2.0
"""The interface of an edit: what it is worth at most, how it is made in a process that runs the
program unchanged, and what people would write for it.

An edit is made by standing in front of a call of torch (`Hand.replace`), by a setting of torch, or
by an environment variable. A new one is a class in a file of this folder and a row in `table.py`;
another package names an instance by an entry point of the group `pyinstrument_gpu.edits`.
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple, TypeAlias

Value: TypeAlias = Any
"""Which of an edit's variants: anything that JSON can hold."""


class Changes(enum.IntEnum):
    """What may change of a training's results, the least first."""

    NOTHING = 0
    DRAWS = 1
    """Which random numbers a sample's transforms draw, as worker processes have their own."""
    LAST_DIGITS = 2
    """The order of sums, and so the last digits of floating-point numbers."""
    RESULTS = 3


@dataclass(frozen=True)
class Facts:
    """What a recorded run says of the program.

    Attributes:
        shares: of the elapsed time, by the name of a phase, inside and outside of steps.
        workers: the most worker processes of a loader; None unknown.
        predicted_workers: the number with which the loop waits least by the replay of the run;
            None where it is not known.
        threads: those of torch's operations on the CPU; None unknown.
        collector_share: of the elapsed time, in Python's garbage collector.
        cores: how many processors the program may use.
        has_gpu: whether the program uses one.
        ranks: how many processes train together.
    """

    shares: Mapping[str, float]
    workers: int | None = None
    predicted_workers: int | None = None
    threads: int | None = None
    collector_share: float = 0.0
    cores: int = 1
    has_gpu: bool = False
    ranks: int = 1

    def share(self, *phases: str) -> float:
        return sum(self.shares.get(phase, 0.0) for phase in phases)

    @property
    def compute_share(self) -> float:
        """The share of what operations on tensors take, as far as phases tell."""
        return self.share("forward", "loss", "backward", "eval", "no_grad", "clip", "optimizer")


class CallPlace(NamedTuple):
    """Where the program makes a call that an edit would change.

    Attributes:
        file, line: of the program.
        call: the name of what is called, such as "DataLoader".
        rank: of several places those of the highest rank are edited.
    """

    file: str
    line: int
    call: str
    rank: int = 0


class Edit:
    """An edit of a program. A subclass sets `name`, `group` and `changes`.

    Attributes:
        name: by which it is known.
        group: for which `--only` asks.
        changes: the most that it may change of the results.
        positions: of those arguments in `keywords` that people may give without their names, as
            which argument.
    """

    name: str
    group: str
    changes: Changes
    positions: Mapping[str, int] = MappingProxyType({})

    def reach(self, facts: Facts) -> float:
        """Return the largest share of the elapsed time that it may save; 0 where it can't."""
        raise NotImplementedError

    def values(self, facts: Facts) -> Sequence[Value]:
        """Return the variants to try, of which at most one is made at a time."""
        return (True,)

    def text(self, value: Value) -> str:
        """Return the edit as people would write it."""
        raise NotImplementedError

    def make(self, value: Value, hand: Hand) -> None:
        """Make the edit in the process of a trial, as soon as torch is imported."""
        hand.applies()

    def environment(self, value: Value) -> Mapping[str, str]:
        """Return what the environment of the program has with it."""
        return {}

    def keywords(self, value: Value) -> Mapping[str, str]:
        """Return the arguments, as source code, that the call at its place has with it."""
        return {}

    def statement(self, value: Value) -> str:
        """Return the statement that the program has with it behind its imports; "" for none."""
        return ""

    def where(self, value: Value) -> str:
        """Return in words where it is written, where that is no call of the program."""
        return "behind the imports"

    def warmup(self, value: Value, facts: Facts) -> int:
        """Return how many steps must be left out of a trial until what was made ahead is used."""
        return 0


@dataclass
class Hand:
    """With what an edit is made in the process of a trial.

    Attributes:
        is_dry: whether it is only noted where the edit would be made.
        places: the files and lines at which it is made; None for all.
        met: where it was made, or would have been.
        is_met: whether it was made anywhere at all.
        at_steps: functions to be called at the end of the warm-up.
    """

    is_dry: bool = False
    places: Collection[tuple[str, int]] | None = None
    met: dict[CallPlace, None] = field(default_factory=dict)
    is_met: bool = False
    at_steps: list[Callable[[], object]] = field(default_factory=list)

    def applies(self) -> bool:
        """Note that the edit needs no call of the program; return whether to make it."""
        self.is_met = True
        return not self.is_dry

    def meets(self, call: str, frame: FrameType, made: object = None, rank: int = 0) -> bool:
        """Note a call of the program that the edit would change; return whether to change it.

        Args:
            made: what is made, if it is a constructor: a class of the program's own calls that of
                its base.
        """
        from pyinstrument_gpu.patching.program_frames import maker_of

        program, _ = maker_of(frame, made)
        file, line = os.path.abspath(program.f_code.co_filename), program.f_lineno
        place = CallPlace(file, line or 0, call, rank)
        self.met[place] = None
        self.is_met = True
        return not self.is_dry and (self.places is None or (file, place.line) in self.places)

    def replace(
        self,
        owner: Any,
        name: str,
        change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
        rank: Callable[[Mapping[str, Any]], int] = lambda arguments: 0,
    ) -> None:
        """Stand in front of a function in Python, and give it other arguments.

        Args:
            owner: the class or module that has it.
            change: gets the arguments of a call by name, with defaults; returns those to be given
                instead, or None to leave the call as it is.
            rank: that of the call's place, from its arguments.
        """
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
                given = dict(bound.arguments)
                bound.apply_defaults()
                new = change(bound.arguments)
                if new:
                    is_constructor = name == "__init__"
                    called = type(args[0]).__name__ if is_constructor else name
                    made = args[0] if is_constructor else None
                    frame = sys._getframe(1)
                    if self.meets(called, frame, made, rank(bound.arguments)):
                        bound.arguments.clear()
                        # In the order of the signature, as it makes arguments of them.
                        given |= new
                        bound.arguments.update(
                            (key, given[key]) for key in signature.parameters if key in given
                        )
                        args, kwargs = bound.args, bound.kwargs
            except Exception:  # a call that is wrong, which the function itself will say
                pass
            return original(*args, **kwargs)

        setattr(owner, name, replaced)
