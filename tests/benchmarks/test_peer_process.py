"""A peer that fails, hangs or is ended: the caller gets one error."""

import time

import pytest

from benchmarks.peer_process import Peer, PeerFailed
from benchmarks.torch_peer import Theirs


class _SlowToRead:
    """An argument that keeps the other process busy for a minute."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return time.sleep, (60,)


def test_errors_and_a_call_that_takes_too_long_reach_the_caller() -> None:
    pytest.importorskip("torch", reason="the peer is PyTorch")
    peer = Peer(None, "cpu", 1)
    with pytest.raises(PeerFailed, match="AttributeError: .*no_such_method"):
        peer.call("no_such_method", limit=120)
    with pytest.raises(PeerFailed, match="AssertionError"):  # no weights yet
        peer.call("steps", "full", 1, limit=120)
    with pytest.raises(PeerFailed, match="stopped after 1 s"):
        peer.call("steps", _SlowToRead(), 1, limit=1)
    with pytest.raises(PeerFailed, match="has ended"):
        peer.call("steps", "full", 1, limit=1)


def test_modes_of_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    calls = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: calls.append(options))
    peer = Theirs.__new__(Theirs)
    for mode in ("default", "dynamic", "max-autotune-no-cudagraphs"):
        peer.compile(mode)
    assert [(call["dynamic"], call["mode"]) for call in calls] == [
        (False, "default"),
        (True, "default"),
        (False, "max-autotune-no-cudagraphs"),
    ]
