# SPDX-License-Identifier: Apache-2.0
"""The data of values that were not finite in a run file and a `Run`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pyinstrument_gpu.aspects.nonfinite import MOST_TEXT, MOST_WAY
from pyinstrument_gpu.core.file.json_document import Count

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Where = Literal["input", "weights", "forward", "backward", "unchecked"]


class Magnitude(Struct, frozen=True):
    """A value on the way to the origin.

    Attributes:
        module: whose output it was, or in whose backward pass the gradient was computed; or the
            name of a weight of the module that made the origin.
        largest: the largest absolute value in it.
    """

    module: _Text
    largest: Annotated[float, Meta(ge=0)]


class Origin(Struct, frozen=True, kw_only=True):
    """The first value that was not finite in the first step that went wrong.

    Attributes:
        step: its index.
        where: "forward" or "backward": it was made there, of finite values; "input": it came into
            the model; "weights": the weights held it when the module was called, so it is older;
            "unchecked": only the loss of this step was looked at.
        module: its name in the model, or its class where it is called by itself; empty for code
            outside of modules.
        module_class: its class.
        detail: the parameter, the operation of the backward pass, or the module before whose call
            the module's own code made the value; empty for none.
        value: "nan" or "inf".
        way: the values before, in the order of the pass.
        dtype: of the origin's tensor, "float16" for example.
        finite_step: the last step before it whose loss was seen to be finite; None for none.
        update_step: the step whose update made weights that were not finite, where all gradients
            of that step were; None where that is not known.
    """

    step: Count
    where: Where
    module: _Text = ""
    module_class: _Text = ""
    detail: _Text = ""
    value: Literal["nan", "inf"] = "nan"
    way: Annotated[tuple[Magnitude, ...], Meta(max_length=MOST_WAY)] = ()
    dtype: _Text = ""
    finite_step: Count | None = None
    update_step: Count | None = None

    @property
    def text(self) -> str:
        """The place where it began, in a sentence without its end."""
        value = "NaN" if self.value == "nan" else "an infinite value"
        named = self.module
        if self.module_class not in ("", self.module):
            named += f" ({self.module_class})"
        if self.where == "unchecked":
            return f"the loss of step {self.step} was {value}, and its modules were not checked"
        if self.where == "input":
            return (
                f"the input of {named} held {value} in step {self.step}, and no module had made it"
            )
        if self.where == "weights":
            held = f"the weights of {named} held {value} already as step {self.step} used them"
            return f"{held} ({self.detail})"
        made = f"the first {value.removeprefix('an ')} of step {self.step} was made by "
        made += named or "code outside of modules"
        if self.where == "forward":
            return f"{made}, forward{f', before it called {self.detail}' if self.detail else ''}"
        return f"{made}, backward{f' ({self.detail})' if self.detail else ''}"


class Nonfinite(Struct, frozen=True, kw_only=True):
    """The values that were checked, and those that were found.

    Attributes:
        checked_steps: in so many steps all modules were checked.
        lost_steps: so many more were begun, whose values have not arrived.
        unknown_values: tensors in checked steps that could not be looked at.
        scaled_overflows: checked steps whose scaled gradients were not finite, which a GradScaler
            skips.
        origin: None where nothing was found.
        why_unknown: why nothing could be checked; empty if it could.
    """

    checked_steps: Count = 0
    lost_steps: Count = 0
    unknown_values: Count = 0
    scaled_overflows: Count = 0
    origin: Origin | None = None
    why_unknown: _Text = ""
