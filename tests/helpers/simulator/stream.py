# SPDX-License-Identifier: Apache-2.0
"""A stream: what is put into it is done in this order."""

from __future__ import annotations


class Stream:
    """A stream, and the bounded queue in front of it.

    Everything is put into it in the order of the host's time, and waits only for what was put
    before, so when it will be done is known at once.

    Args:
        depth: what was enqueued and is not done is at most so much; beyond, the host waits.
        latency_ns: from the driver's call to the begin on an idle device.
    """

    def __init__(self, depth: int, latency_ns: int) -> None:
        self._depth = depth
        self._latency_ns = latency_ns
        self._done_ns: list[int] = []
        self.free_ns = 0

    def room_ns(self, now_ns: int) -> int:
        """When there is room for one more."""
        done_ns = self._done_ns
        if len(done_ns) < self._depth:
            return now_ns
        return max(now_ns, done_ns[-self._depth])

    def put(self, now_ns: int, duration_ns: int) -> int:
        """One more, at a time when there is room. Returns when it will be done."""
        self.free_ns = max(self.free_ns, now_ns + self._latency_ns) + duration_ns
        self._done_ns.append(self.free_ns)
        return self.free_ns

    def put_graph(self, now_ns: int, durations_ns: list[int]) -> int:
        """Many at once, which take one place in the queue."""
        return self.put(now_ns, sum(durations_ns))

    def last_done_at(self, time_ns: int) -> None:
        """What was put last is done no sooner: it waits for others."""
        self.wait_until(time_ns)
        self._done_ns[-1] = self.free_ns

    def launch(self, now_ns: int, hosts_ns: list[int], durations_ns: list[int]) -> int:
        """Many, one after the other, each after so much time of the host. Returns when the host
        has enqueued the last."""
        # The same as `room_ns` and `put` in a loop, which would take three times as long.
        done_ns, depth, latency_ns = self._done_ns, self._depth, self._latency_ns
        free_ns = self.free_ns
        count = len(done_ns)
        for host_ns, duration_ns in zip(hosts_ns, durations_ns, strict=True):
            now_ns += host_ns
            if count >= depth and done_ns[-depth] > now_ns:
                now_ns = done_ns[-depth]
            reached_ns = now_ns + latency_ns
            if reached_ns > free_ns:
                free_ns = reached_ns
            free_ns += duration_ns
            done_ns.append(free_ns)
            count += 1
        self.free_ns = free_ns
        return now_ns

    def wait_until(self, time_ns: int) -> None:
        """What comes next begins no sooner: it waits for another stream."""
        self.free_ns = max(self.free_ns, time_ns)
