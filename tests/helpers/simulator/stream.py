# SPDX-License-Identifier: Apache-2.0
"""A stream: what is put into it is done in this order.

Everything is put into it in the order of the host's time, and waits only for what was put before,
so when it will be done is known at once. Of kernels that are launched together, while there is room
for all of them, only the last one's end is needed. It is the latest of these: all of them, one
after the other, behind what is on the stream already; and for each kernel the time when the host
has launched it, then that kernel and those behind it. The times of the single kernels are only
worked out once the queue has no room.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class Kernels:
    """Kernels that are launched one after the other, each after some time of the host, in turns.

    Args:
        hosts_ns, devices_ns: of each turn and kernel the host's time and the kernel's own.
    """

    def __init__(self, hosts_ns: NDArray[np.int64], devices_ns: NDArray[np.int64]) -> None:
        self._hosts_ns, self._devices_ns = hosts_ns, devices_ns
        done_ns = np.cumsum(devices_ns, axis=1)
        left_ns = done_ns[:, -1:] - done_ns + devices_ns
        self.count = hosts_ns.shape[1]
        self.host_ns: list[int] = hosts_ns.sum(axis=1).tolist()
        self.device_ns: list[int] = done_ns[:, -1].tolist()
        self.idle_ns: list[int] = (np.cumsum(hosts_ns, axis=1) + left_ns).max(axis=1).tolist()
        """What they take on an idle device without latency, from the host's begin on."""

    def of(self, turn: int) -> tuple[list[int], list[int]]:
        """The times of each kernel in a turn."""
        return self._hosts_ns[turn].tolist(), self._devices_ns[turn].tolist()


@dataclass
class _Enqueued:
    """Commands in the queue: when they are done, or the kernels of which that can be worked out."""

    count: int
    done_ns: int
    each_ns: list[int] | None
    kernels: Kernels | None = None
    turn: int = 0
    begin_ns: int = 0
    free_ns: int = 0


class Stream:
    """A stream, and the bounded queue in front of it.

    Args:
        depth: what was enqueued and is not done is at most so much; beyond, the host waits.
        latency_ns: from the driver's call to the begin on an idle device.
    """

    def __init__(self, depth: int, latency_ns: int) -> None:
        self._depth = depth
        self._latency_ns = latency_ns
        self._queue: deque[_Enqueued] = deque()
        self._queued = 0
        self.free_ns = 0

    def room_ns(self, now_ns: int) -> int:
        """When there is room for one more."""
        self._take_done(now_ns)
        if self._queued < self._depth:
            return now_ns
        return max(now_ns, self._each_ns()[-self._depth])

    def put(self, now_ns: int, duration_ns: int) -> int:
        """One more, at a time when there is room. Returns when it will be done."""
        self.free_ns = max(self.free_ns, now_ns + self._latency_ns) + duration_ns
        self._append(_Enqueued(1, self.free_ns, [self.free_ns]))
        return self.free_ns

    def launch(self, now_ns: int, kernels: Kernels, turn: int) -> int:
        """Launches kernels. Returns when the host has enqueued the last."""
        self._take_done(now_ns)
        if self._queued + kernels.count > self._depth:
            return self._launch_each(now_ns, *kernels.of(turn))
        before_ns = self.free_ns
        idle_ns = now_ns + self._latency_ns + kernels.idle_ns[turn]
        self.free_ns = max(before_ns + kernels.device_ns[turn], idle_ns)
        self._append(_Enqueued(kernels.count, self.free_ns, None, kernels, turn, now_ns, before_ns))
        return now_ns + kernels.host_ns[turn]

    def wait_until(self, time_ns: int) -> None:
        """What comes next begins no sooner: it waits for another stream."""
        self.free_ns = max(self.free_ns, time_ns)

    def last_done_at(self, time_ns: int) -> None:
        """The command that was put last is done no sooner: it waits for others."""
        self.wait_until(time_ns)
        last = self._queue[-1]
        last.done_ns, last.each_ns = self.free_ns, [self.free_ns]

    def _append(self, enqueued: _Enqueued) -> None:
        self._queue.append(enqueued)
        self._queued += enqueued.count

    def _take_done(self, now_ns: int) -> None:
        while self._queue and self._queue[0].done_ns <= now_ns:
            self._queued -= self._queue.popleft().count

    def _each_ns(self) -> list[int]:
        """When each command in the queue is done, as a list that stays the queue's only part."""
        first = self._queue[0]
        if len(self._queue) > 1 or first.each_ns is None:
            parts = [self._worked_out(part) for part in self._queue]
            done_ns = [time_ns for part in parts for time_ns in part]
            self._queue.clear()
            self._queued = 0
            self._append(_Enqueued(len(done_ns), done_ns[-1], done_ns))
        each_ns = self._queue[0].each_ns
        assert each_ns is not None
        return each_ns

    def _worked_out(self, part: _Enqueued) -> list[int]:
        if part.each_ns is not None:
            return part.each_ns
        assert part.kernels is not None
        now_ns, free_ns, done_ns = part.begin_ns, part.free_ns, []
        for host_ns, device_ns in zip(*part.kernels.of(part.turn), strict=True):
            now_ns += host_ns
            free_ns = max(free_ns, now_ns + self._latency_ns) + device_ns
            done_ns.append(free_ns)
        return done_ns

    def _launch_each(self, now_ns: int, hosts_ns: list[int], devices_ns: list[int]) -> int:
        done_ns = self._each_ns() if self._queue else []
        count, depth, latency_ns, free_ns = (
            len(done_ns),
            self._depth,
            self._latency_ns,
            self.free_ns,
        )
        for host_ns, device_ns in zip(hosts_ns, devices_ns, strict=True):
            now_ns += host_ns
            if count >= depth and done_ns[-depth] > now_ns:
                now_ns = done_ns[-depth]
            reached_ns = now_ns + latency_ns
            if reached_ns > free_ns:
                free_ns = reached_ns
            free_ns += device_ns
            done_ns.append(free_ns)
            count += 1
        self.free_ns = free_ns
        # No more than the queue holds can be asked for later.
        del done_ns[: max(0, count - depth)]
        self._queue.clear()
        self._queued = 0
        self._append(_Enqueued(len(done_ns), free_ns, done_ns))
        return now_ns
