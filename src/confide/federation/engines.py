"""The embedded engine: all sites on one machine, one after another, through the same codec.

`Hosting` makes a site's host. The sequential engine makes hosts here, the engine of `workers` makes
them in its processes, and both give the same numbers.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.errors import FederationError
from confide.federation.broadcast import Left, Up, Uploading
from confide.federation.failures import Failure
from confide.federation.memory import MemoryStore
from confide.federation.messages import Pieces, encode
from confide.federation.replies import KeptReplies
from confide.federation.secure.site import Member, Sets
from confide.federation.secure.steps import SumHost, Sums
from confide.federation.site import Expects, Scratch, Site, SiteHost
from confide.federation.steps import Delivery, Step
from confide.privacy.accountant import PRIVACY, Limit, PrivacyBudget
from confide.training.devices import Place, compute_at, here


@dataclass(frozen=True)
class Hosting:
    """The common parts of a run's sites: the method's steps and memory, and the seed.

    Server and sites keep a checkpoint after every `every`-th round and after round `last`. `sums`:
    how replies are summed. `binding`: the digest of what all sites received. `groups`: the size of
    fixed groups that may be summed by themselves; 0: none. `simulated`: the seed of an experiment
    whose sites draw nothing that cannot be repeated, and so keep nothing secret. `up`, `top`: how
    uploads travel where the server may see them, and the share of numbers that "top" sends.
    `expects`: what the settings make of every ask.
    """

    steps: Mapping[str, Step]
    memory: type
    seed: int
    every: int = 1
    last: int | None = None
    sums: Sums = "plain"
    binding: bytes = b""
    groups: int = 0
    simulated: int | None = None
    up: Up = "rows"
    top: float = 0.01
    expects: Expects | None = None

    def host(
        self,
        spec: Site,
        scratch: Scratch,
        *,
        member: Member | None = None,
        budget: Path | None = None,
        kept: KeptReplies | None = None,
    ) -> SiteHost:
        """A site, ready to answer.

        `member` is its part in secure sums, if it has keys of its own; otherwise it makes keys for
        this process, and believes all others'. `budget` is the folder of its account over all runs;
        by default this run has one of its own. `kept` is where finished replies go, if anywhere.
        """
        site = spec.in_process(scratch)
        site.log = spec.folder / "site.log"
        limit = Limit(spec.guards.max_epsilon, spec.guards.delta)
        made_of = b"" if self.simulated is None else f"{self.simulated}\0{spec.name}".encode()
        site.budget = PrivacyBudget(budget or spec.folder / PRIVACY, limit, simulated=made_of)
        if self.sums != "plain":
            site.guards = replace(site.guards, masked=True)
            site.member = member or Member(
                spec.name,
                Ed25519PrivateKey.generate(),
                least=spec.guards.min_sites,
                binding=self.binding,
                record=Sets(spec.folder / "sums"),
                group=self.groups,
            )
        return SiteHost(
            site,
            self.steps,
            memory=MemoryStore(
                spec.folder / "memory", self.memory, every=self.every, last=self.last
            ),
            seed=self.seed,
            uploading=Uploading(
                self.up,
                share=self.top,
                memory=MemoryStore(spec.folder / "left", Left, every=self.every, last=self.last),
                most=spec.guards.max_norm,
            ),
            sums=SumHost(site, site.member) if site.member else None,
            expects=self.expects,
            kept=kept,
        )


class SequentialEngine:
    """Asks one site after another, in the order of their names, in this process."""

    def __init__(self, specs: Sequence[Site], hosting: Hosting) -> None:
        scratch: Scratch = {}
        self._hosts = {spec.name: hosting.host(spec, scratch) for spec in specs}

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return tuple(sorted(self._hosts))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes | Pieces], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply. Ignores `timeout`: nothing here can be interrupted."""
        whole = {id(data): bytes(data) for data in asks.values()}  # a broadcast is held once
        for site in sorted(asks):
            start = time.perf_counter()
            found = [self._hosts[site].answer(step, round, whole[id(asks[site])])]
            seconds = time.perf_counter() - start
            yield Delivery(site, found.pop(), seconds)  # not held while the next site works

    def stop(self) -> None:
        """Do nothing: nothing runs here between asks."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


# --- The engine of several processes
#
# It is the embedded engine with worker processes, spawned once and kept for the run.
#
# Each worker keeps the same sites throughout (and so their encoded text) and computes with
# `threads` threads. Asks and replies are encoded bytes in unnamed memory, so nothing of a message
# is left when the processes are killed. A worker that dies is restarted and its ask repeated
# once. Since every answer depends only on memory, ask and seed, the numbers do not change. If
# memory is not written in every round, the run stops instead, and can be resumed from its last
# checkpoint.


_SPAWN = multiprocessing.get_context("spawn")
_ONE_AT_A_TIME = threading.Lock()


class WorkerEngine:
    """Sites spread over `workers` processes of `threads` threads each.

    The processes take the places in turn; without any, all compute where this one does.
    """

    def __init__(
        self,
        specs: Sequence[Site],
        hosting: Hosting,
        *,
        workers: int,
        threads: int = 1,
        places: Sequence[Place] = (),
    ) -> None:
        self._sites = tuple(sorted(spec.name for spec in specs))
        self._stopped = False
        shares = _deal(specs, min(workers, len(specs)))
        self._workers = [
            _Worker(share, hosting, threads, place)
            for share, place in zip(shares, cycle(places or [here()]), strict=False)
        ]
        self._home = {
            spec.name: worker
            for worker, share in zip(self._workers, shares, strict=True)
            for spec in share
        }

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return self._sites

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes | Pieces], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply, as they come; a failure if it takes over `timeout` seconds.

        Raises FederationError if the engine was stopped, or if a worker ended whose sites' memory
        is not on disk.
        """
        queues: dict[_Worker, deque[str]] = {}
        for site in sorted(asks):
            queues.setdefault(self._home[site], deque()).append(site)
        busy = [worker for worker in self._workers if worker in queues]
        with contextlib.ExitStack() as held:
            for worker in busy:
                held.enter_context(worker.lock)
            self._check_open()
            blocks: dict[int, tuple[int, int]] = {}  # a broadcast is stored once
            for data in asks.values():
                if id(data) not in blocks:
                    blocks[id(data)] = _placed(data), len(data)
                    held.callback(os.close, blocks[id(data)][0])

            def begin(worker: _Worker) -> None:
                site = queues[worker].popleft()
                worker.begin(step, round, site=site, block=blocks[id(asks[site])])

            for worker in busy:
                begin(worker)
            while busy:
                for worker in _ready(busy, timeout):
                    self._check_open()
                    delivery = worker.finish()
                    if delivery is None:
                        continue
                    if queues[worker]:
                        begin(worker)
                    else:
                        busy.remove(worker)
                    yield delivery

    def stop(self) -> None:
        """End all work at once; deliveries under way raise FederationError."""
        self._stopped = True
        for worker in self._workers:
            worker.process.kill()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()

    def _check_open(self) -> None:
        if self._stopped:
            raise FederationError("the engine was stopped")


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, specs: Sequence[Site], hosting: Hosting, threads: int, place: Place) -> None:
        self._arguments = (list(specs), hosting, threads, place)
        self._every = hosting.every
        self.lock = threading.Lock()
        self.pipe: Connection
        self._ask = ("", 0, "", (0, 0))  # step, round, site, block
        self._since = 0.0
        self._again = False
        self._spawn()

    def _spawn(self) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, *self._arguments), daemon=True)
        with _no_script():
            self.process.start()
        theirs.close()
        self._busy = self._up = False

    def begin(self, step: str, round: int, *, site: str, block: tuple[int, int]) -> None:
        """Hand over an ask, a handle of memory and a length. `finish` notices if the process died.

        An ask that is still in hand was given up: its reply must not answer this one.
        """
        if self._busy:
            self._kill()
            self._spawn()
        self._ask, self._again = (step, round, site, block), False
        self._send()

    def _send(self) -> None:
        self._since, self._busy = time.perf_counter(), True
        step, round, site, (handle, length) = self._ask
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((step, round, site, length))
            send_handle(self.pipe, handle, self.process.pid)

    def overdue(self, timeout: float | None) -> bool:
        """True if the ask in hand has taken too long, not counting the start of the process."""
        return timeout is not None and self._up and time.perf_counter() - self._since > timeout

    def finish(self) -> Delivery | None:
        """The reply; None if the process has only started, or died and was asked again."""
        _, _, site, _ = self._ask
        try:
            if self.pipe.poll(0):
                said = self.pipe.recv()
                if said is None:
                    self._up, self._since = True, time.perf_counter()
                    return None
                length, seconds = said
                reply = _taken(recv_handle(self.pipe), length)
                self._busy = False
                return Delivery(site, reply, seconds)
            code = "timeout"
        except (EOFError, ConnectionResetError):
            code = "lost"
        self._kill()
        self._spawn()
        if self._every > 1:
            raise FederationError(
                f"a worker process ended while working for {site} ({code}), and its sites'"
                " memory since the last checkpoint is lost",
                fix="continue the run with --resume",
            )
        if code == "lost" and not self._again:
            self._again = True
            self._send()
            return None
        seconds = time.perf_counter() - self._since
        return Delivery(site, encode(Failure(code, "", "", "")), seconds, heard=False)

    def end(self) -> None:
        """Let the process end, and make sure that it did."""
        with contextlib.suppress(OSError):
            self.pipe.close()
        self.process.join(timeout=2)
        self._kill()

    def _kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


@contextlib.contextmanager
def _no_script() -> Iterator[None]:
    """Keep a process spawned inside from running the caller's script again; it does not need it."""
    main = vars(sys.modules["__main__"])
    with _ONE_AT_A_TIME:
        kept: dict[str, object] = {n: main[n] for n in ("__spec__", "__file__") if n in main}
        main["__spec__"] = None
        main.pop("__file__", None)
        try:
            yield
        finally:
            main.update(kept)


def _ready(workers: list[_Worker], timeout: float | None) -> list[_Worker]:
    """The workers that have something to say or are overdue. Waits until there is one."""
    while True:
        pipes = {worker.pipe: worker for worker in workers}
        speaking = wait(list(pipes), timeout=None if timeout is None else 0.2)
        found = [pipes[pipe] for pipe in speaking]  # type: ignore[index]
        found += [w for w in workers if w not in found and w.overdue(timeout)]
        if found:
            return found


def _deal(specs: Sequence[Site], count: int) -> list[list[Site]]:
    """The sites of each worker: the largest first, each to the worker with the least so far."""
    shares: list[list[Site]] = [[] for _ in range(count)]
    loads = [0] * count
    for spec in sorted(specs, key=lambda spec: (-spec.weight, spec.name)):
        place = loads.index(min(loads))
        shares[place].append(spec)
        loads[place] += spec.weight + 1
    return shares


def _work(
    pipe: Connection, specs: list[Site], hosting: Hosting, threads: int, place: Place
) -> None:
    """The life of a worker process: answer until the pipe closes."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    compute_at(place)
    scratch: Scratch = {}
    hosts = {spec.name: hosting.host(spec, scratch) for spec in specs}
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(None)
        while True:
            step, round, site, length = pipe.recv()
            ask = _taken(recv_handle(pipe), length)
            start = time.perf_counter()
            reply = hosts[site].answer(step, round, ask)
            seconds = time.perf_counter() - start
            pipe.send((len(reply), seconds))
            handle = _placed(reply)
            send_handle(pipe, handle, os.getppid())
            os.close(handle)


def _placed(data: bytes | Pieces) -> int:
    """A handle of new unnamed memory that holds these bytes; it is gone with its processes."""
    if hasattr(os, "memfd_create"):  # Linux
        handle = os.memfd_create("confide")
    else:
        with tempfile.TemporaryFile() as file:  # gone from its folder as soon as it is there
            handle = os.dup(file.fileno())
    for part in data.parts if isinstance(data, Pieces) else [data]:
        view = memoryview(part)
        while view:
            view = view[os.write(handle, view) :]
    return handle


def _taken(handle: int, length: int) -> bytes:
    """A copy of the first bytes of such memory; the handle is closed."""
    try:
        with mmap.mmap(handle, length, prot=mmap.PROT_READ) as block:
            return block[:]
    finally:
        os.close(handle)
