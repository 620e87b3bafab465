"""The PyTorch peer in a process of its own: it compiles on other cores while spanjax does, and can be stopped."""

import contextlib
import multiprocessing
import queue
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from benchmarks.torch_peer import Theirs

MEMORY = 0.4  # share of a GPU's memory that PyTorch may take; JAX has 0.55


class PeerFailed(Exception):
    """The other process raised an error, ended, or took too long."""


class Peer:
    """`Theirs` behind a pipe. Batches stay in the other process, by name."""

    def __init__(self, encoder: Any, device: str, threads: int | None = None):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, encoder, device, threads), daemon=True)
        self._process.start()
        theirs.close()
        self._calls = queue.SimpleQueue[tuple[str, tuple[Any, ...]]]()
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        """Sends calls one by one, in a thread: a busy process leaves a large one in the pipe."""
        with contextlib.suppress(OSError):
            while True:
                self._pipe.send(self._calls.get())

    def begin(self, name: str, *arguments: Any) -> None:
        """Queues a call of a method of `_Server`; `result` returns the results of calls in their order."""
        self._calls.put((name, arguments))

    def result(self, limit: float = 600.0) -> Any:
        """The next result. PeerFailed after `limit` seconds, or with the error of the other process."""
        try:
            if not self._pipe.poll(limit):
                self.close()
                raise PeerFailed(f"the peer was stopped after {limit:.0f} s")
            worked, value = self._pipe.recv()
        except (EOFError, OSError):
            raise PeerFailed("the peer's process has ended") from None
        if not worked:
            raise PeerFailed(value)
        return value

    def call(self, name: str, *arguments: Any, limit: float = 600.0) -> Any:
        """A call and its result."""
        self.begin(name, *arguments)
        return self.result(limit)

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.join(10)
        self._pipe.close()


class _Server:
    """The other end of the pipe; every public method may be called through it."""

    def __init__(self, encoder: Any, device: str):
        self._encoder, self._device = encoder, device
        self._theirs: Theirs | None = None
        self._batches: dict[str, Any] = {}

    @property
    def _peer(self) -> Theirs:
        assert self._theirs is not None
        return self._theirs

    def weights(self, params: Any, bf16_weights: bool = False) -> None:
        """Makes the model from spanjax's parameters; the batches of one before are lost."""
        self._theirs = None
        self._batches.clear()
        self._theirs = Theirs(self._encoder, params, device=self._device, bf16=True)
        if bf16_weights:
            self._theirs.modules.bfloat16()

    def ready(self, batches: Mapping[str, tuple[Any, int | None]], masked_only: bool, compiled: str) -> float:
        """Puts batches (each with the length to cut to, None for none) on the device and takes a step on each; its seconds.

        `compiled` is "", or a mode of torch.compile ("dynamic" for one program for all lengths).
        """
        peer, self._batches = self._peer, {}
        if self._device != "cpu":
            import torch

            torch.cuda.empty_cache()
        peer.masked_only, peer.objective = masked_only, peer.losses
        if compiled:
            peer.compile(mode=compiled)
        begin = time.perf_counter()
        self._batches = {name: peer.batch(batch, length) for name, (batch, length) in batches.items()}
        for name in batches:
            self.steps(name, 1)
        return time.perf_counter() - begin

    def steps(self, name: str, count: int) -> None:
        """`count` updates on a batch, finished."""
        self._peer.steps(self._batches[name], count)

    def means(self, batch: Mapping[str, Any], bf16: bool) -> dict[str, float]:
        """Both losses without dropout, in bf16 or in float32."""
        peer = self._peer
        peer.bf16 = bf16
        try:
            return peer.means(peer.batch(batch))
        finally:
            peer.bf16 = True


def _serve(pipe: Any, encoder: Any, device: str, threads: int | None) -> None:
    """Answers calls until the pipe closes."""
    server = None
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            name, arguments = pipe.recv()
            try:
                if server is None:
                    import torch

                    if threads:
                        torch.set_num_threads(threads)
                    if device != "cpu":
                        torch.cuda.set_per_process_memory_fraction(MEMORY)
                    server = _Server(encoder, device)
                answer = True, getattr(server, name)(*arguments)
            except Exception as error:  # noqa: BLE001  (the caller reports it)
                traceback.print_exc()
                answer = False, f"{type(error).__name__}: {error}"
            pipe.send(answer)
