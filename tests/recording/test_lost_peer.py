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
