# SPDX-License-Identifier: Apache-2.0
"""What device times rest on: the distances between events.

The recorder takes the time of an event from its distance to an event whose time it knows, which may
lie on another stream and may be the later one of the two (`DeviceClock::time_of`). It holds the
device's tick for the greatest common divisor of short distances, and rounds long ones, which the
driver gives as a float of milliseconds, to that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from tests.helpers.cuda_kernels import CudaError

EVENTS = 80
PART_NS = 5_000_000  # together 0.4 s; the recorder asks for no distance above 0.45 s
EXACT_NS = 8_000_000  # below this the driver's floats have steps of less than a nanosecond
DOCUMENTED_NS = 500
LONGEST_TICK_NS = 2_000  # `kMaxTickNs` of the recorder


def distance_ns(gpu: Gpu, begin: Any, end: Any) -> int:
    return round(gpu.distance_ms(begin, end) * 1e6)


def one_by_one(gpu: Gpu) -> list[Any]:
    """Events on two streams in turn. Each is complete before the next is recorded, so their order
    is known."""
    events = []
    with gpu.side_stream() as first, gpu.side_stream() as second:
        for index in range(EVENTS):
            with gpu.on_stream((first, second)[index % 2]):
                gpu.spin(PART_NS)
                events.append(gpu.event())
                events[-1].record()
            gpu.synchronize()
    return events


def back_to_back(gpu: Gpu) -> list[Any]:
    """Events on one stream, microseconds apart."""
    events = [gpu.event() for _ in range(EVENTS)]
    with gpu.held():
        for index, event in enumerate(events):
            gpu.spin(1_000 + 37 * index)
            event.record()
    gpu.synchronize()
    return events


def backwards(gpu: Gpu, where: str, events: Sequence[Any]) -> Iterator[Figure]:
    """How often a distance from a later event to an earlier one is not what it should be."""
    pairs = refused = wrong = 0
    for earlier, later in combinations(events, 2):
        pairs += 1
        forwards_ns = distance_ns(gpu, earlier, later)
        try:
            wrong += forwards_ns < 0 or distance_ns(gpu, later, earlier) != -forwards_ns
        except CudaError:
            refused += 1
    yield Figure(
        f"{where}: distances backwards that the driver refuses", refused / pairs, "", goal=0
    )
    yield Figure(f"{where}: distances with a wrong sign or size", wrong / pairs, "", goal=0)


def unasked(gpu: Gpu) -> Iterator[Figure]:
    """What cuEventElapsedTime_v2 says of events that are complete, and of which nobody has asked
    whether they are. The recorder asks it first, and the older one where it answers 600."""
    begin, end = gpu.event(), gpu.event()
    begin.record()
    gpu.spin(1_000)
    end.record()
    gpu.synchronize()
    before = gpu.distance_without_query(begin, end)
    if before is None:
        print("the driver has no cuEventElapsedTime_v2", flush=True)
        return
    gpu.distance_ms(begin, end)
    after = gpu.distance_without_query(begin, end)
    note = "0: it is told; 600: not ready"
    yield Figure(
        "cuEventElapsedTime_v2 of events that nobody queried: answer", before, "", note=note
    )
    yield Figure("the same, behind the older function: answer", after or 0, "", note=note)


def figures(gpu: Gpu) -> Iterator[Figure]:
    """All that this part measures."""
    yield from unasked(gpu)
    near, far = back_to_back(gpu), one_by_one(gpu)
    yield from backwards(gpu, "one stream", near)
    yield from backwards(gpu, "two streams", far)
    short_ns = [distance_ns(gpu, *pair) for pair in [*combinations(near, 2), *pairwise(far)]]
    tick_ns = math.gcd(*(ns for ns in short_ns if abs(ns) < EXACT_NS))
    yield Figure(
        "resolution: the divisor of all short distances",
        tick_ns,
        "ns",
        goal=LONGEST_TICK_NS,
        note=f"documented: about {DOCUMENTED_NS} ns",
    )
    apart_ns = sorted(distance_ns(gpu, *pair) for pair in pairwise(near))
    yield Figure("two events with a kernel of a microsecond between, least", apart_ns[0], "ns")
    parts_ns = sum(distance_ns(gpu, *pair) for pair in pairwise(far))
    long_ns = gpu.distance_ms(far[0], far[-1]) * 1e6
    yield Figure("a distance of 0.4 s less the sum of its parts", long_ns - parts_ns, "ns")
    rounded_ns = round(long_ns / tick_ns) * tick_ns if tick_ns else round(long_ns)
    yield Figure(
        "the same, rounded as the recorder does: size of the error",
        abs(rounded_ns - parts_ns),
        "ns",
        goal=0,
    )


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
