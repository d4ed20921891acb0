# SPDX-License-Identifier: Apache-2.0
"""Which exceptions say that another rank did not answer."""

from __future__ import annotations

import pytest

from pyinstrument_gpu.recording.lost_peer import has_lost_peer


class DistBackendError(RuntimeError):
    """As torch's, which is derived from the same."""


class Broken(RuntimeError):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:1448. This is typically caused by a remote worker crashing.",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:3235: "
        "Connection reset by peer.",
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms "
        "for recv operation to complete",
        "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network "
        "error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=512, "
        "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600063 milliseconds before timing out.",
        "wait timeout after 4000ms, keys: /default_pg/0//key",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown "
        "or crash?",
        "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    ],
)
def test_of_another_rank(text: str) -> None:
    assert has_lost_peer(DistBackendError(text))
    assert not has_lost_peer(OSError(text))


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("bad batch"), RuntimeError("CUDA error: an illegal memory access"), Broken()),
        ConnectionResetError("Connection reset by peer"),
        RuntimeError("the bucket of the data set: Connection reset by peer"),
    ],
)
def test_of_its_own(error: Exception) -> None:
    assert not has_lost_peer(error)


def test_what_was_raised_from_it_or_while_it_was_handled() -> None:
    lost = RuntimeError("gloo: Connection closed by peer")
    for raised in (ValueError("training failed"), SystemExit(1), KeyboardInterrupt()):
        for cause in (lost, None):
            try:
                try:
                    raise lost
                except RuntimeError:
                    raise raised from cause
            except BaseException as error:
                assert has_lost_peer(error)


def test_exceptions_that_came_of_each_other() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert not has_lost_peer(first)
