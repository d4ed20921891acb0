# SPDX-License-Identifier: Apache-2.0
"""Whether the first report names what is wrong: small programs of which the cause is known, each
with a healthy twin. `scoring.py` has the rule. With `--busy` two loops compute beside them.

    python -m benchmarks.causes --only slow_collate,gc
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.causes.runner import Outcome, busy_loops, outcome, reports
from benchmarks.causes.scoring import first_advice
from benchmarks.causes.table import CAUSES
from benchmarks.machine import describe_machine


def row(one: Outcome) -> str:
    twin = "NAMED" if one.is_falsely_named else "-"
    return f"{one.name:24} {one.points:>6} {one.gain:>6.0%} {one.elapsed_s:>8.1f}  {twin:6}"


def total(outcomes: Sequence[Outcome]) -> str:
    got, most = sum(one.points for one in outcomes), 2 * len(outcomes)
    harmful = sum(one.points < 0 for one in outcomes)
    false = sum(one.is_falsely_named for one in outcomes)
    return (
        f"{got} of {most} points ({got / most:.0%}); {harmful} with harmful advice or another "
        f"cause first; named in {false} of {len(outcomes)} twins"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", metavar="NAMES", help="separated by commas; a part of a name")
    parser.add_argument("--busy", action="store_true", help="two busy loops beside the programs")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long they train")
    parser.add_argument(
        "--times", type=int, metavar="N", help="run each so often, and count what is advised first"
    )
    parser.add_argument("--quiet", action="store_true", help="no headlines")
    parser.add_argument("--reports", action="store_true", help="whole reports too")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all as JSON")
    options = parser.parse_args()
    wanted = (options.only or "").split(",")
    causes = [one for one in CAUSES if any(part in one.name for part in wanted)]
    if not causes:
        parser.error(f"no cause has {options.only} in its name")
    if options.times:
        for cause in causes:
            firsts = Counter(map(first_advice, reports(cause, options.seconds, options.times)))
            said = "; ".join(f"{count} x {advice}" for advice, count in firsts.most_common())
            print(f"{cause.name:24} {len(firsts)} first advice: {said}", flush=True)
        return
    print(f"{'cause':24} {'points':>6} {'gain':>6} {'elapsed':>8}  twin")
    outcomes: list[Outcome] = []
    failed: list[str] = []
    with busy_loops(2) if options.busy else contextlib.nullcontext():
        for cause in causes:
            try:
                outcomes.append(one := outcome(cause, options.seconds))
            except Exception as error:
                failed.append(cause.name)
                print(f"{cause.name:24} failed: {error}")
                continue
            print(row(one))
            if not options.quiet:
                print(
                    textwrap.fill(
                        one.headline, 100, initial_indent="    ", subsequent_indent="    "
                    )
                )
            if options.reports:
                print(textwrap.indent(one.report, "    | "))
            sys.stdout.flush()
    if outcomes:
        print(total(outcomes))
    if options.results is not None:
        found = [one.to_dict() for one in outcomes]
        results = {"machine": describe_machine(), "busy": options.busy, "outcomes": found}
        options.results.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
