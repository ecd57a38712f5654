"""The engine over NVIDIA FLARE: one FLARE task per asked site, replies as they come.

Large replies are fetched side by side, each into a file without a name, and are read one at a time.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from confide.errors import EngineError, RunError
from confide.federation.engine import Delivery
from confide.federation.failures import Failure
from confide.federation.messages import encode
from confide.federation.spool import Spool
from confide.flare.nvidia.envelope import ask_of, replied
from confide.flare.nvidia.freeing import LARGE, free
from confide.flare.nvidia.parts import Outbox, Talking, Ticket, parts

_POLL = 0.02
"""Seconds between two checks of the tasks that are still open."""

Heard = queue.SimpleQueue[tuple[str, Callable[[], Delivery]]]
"""Sites that answered, and how to get at what each of them said."""


class FlareEngine:
    """Asks sites through a controller's tasks; every site has its own task, and so its own bytes.

    Args:
        controller: its `broadcast` sends a task.
        context: FLARE's context of the controller's thread.
        outbox: where large asks wait to be fetched.
        stop: FLARE's signal that the run shall end.
        sites: the names of all sites.
        gone: says whether a site's process is lost.
    """

    def __init__(
        self,
        controller: Controller,
        context: FLContext,
        stop: Signal,
        *,
        outbox: Outbox,
        sites: Sequence[str],
        gone: Callable[[str], bool],
    ) -> None:
        self._controller = controller
        self._context = context
        self._outbox = outbox
        self._stop = stop
        self._sites = tuple(sorted(sites))
        self._gone = gone

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return self._sites

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply, in the order they come, or a failure: `lost` or `timeout`.

        `seals` vouch for the asks (`flare.run.signing`). Raises EngineError if FLARE ends the run,
        RunError if a large reply finds no room on the disk.
        """
        free()
        heard: Heard = queue.SimpleQueue()
        over = threading.Event()
        different = {id(data): data for data in asks.values()}
        carried = {key: self._outbox.put(data) for key, data in different.items()}
        open_tasks = {}
        for site, data in sorted(asks.items()):
            ask = ask_of(round, carried[id(data)], seal=(seals or {}).get(site, b""))
            open_tasks[site] = self._send(site, step, ask, heard, over)
        start = time.monotonic()
        try:
            while open_tasks:
                if self._stop.triggered:
                    raise EngineError("the engine ended the run while sites were being asked")
                try:
                    site, said = heard.get(timeout=_POLL)
                except queue.Empty:
                    late = timeout is not None and time.monotonic() - start > timeout
                    for site, task in list(open_tasks.items()):
                        code = self._lost(site, task, late=late)
                        if code and heard.empty():
                            del open_tasks[site]
                            self._cancel(task)
                            yield _failed(site, code, time.monotonic() - start)
                    continue
                if open_tasks.pop(site, None) is not None:
                    yield from _alone(said)
        finally:
            over.set()
            self._outbox.empty()
            for task in open_tasks.values():
                self._cancel(task)

    def _send(
        self, site: str, step: str, ask: Shareable, heard: Heard, over: threading.Event
    ) -> Task:
        start = time.monotonic()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            reply = replied(client_task.result)
            client_task.result = None  # FLARE would keep the bytes
            seconds = time.monotonic() - start
            if reply is None:
                heard.put((site, lambda: _failed(site, "lost", seconds)))
                return
            data, worked, seal = reply
            worked = min(worked, seconds)
            if isinstance(data, Ticket):
                fetching = _Fetched(site, data, worked, seal, self._context.get_engine())
                given = heard, over.is_set
                threading.Thread(target=fetching.fetch, args=given, daemon=True).start()
            else:
                heard.put((site, lambda: Delivery(site, data, worked, seal)))

        task = Task(name=step, data=ask, result_received_cb=received)
        self._controller.broadcast(task, self._context, targets=[site], min_responses=1)
        return task

    def _lost(self, site: str, task: Task, *, late: bool) -> str | None:
        """The code of a site whose reply will not come; None if it still may."""
        status = task.completion_status
        if late or status == TaskCompletionStatus.TIMEOUT:
            return "timeout"
        over = status is not None and status != TaskCompletionStatus.OK
        return "lost" if over or self._gone(site) else None

    def _cancel(self, task: Task) -> None:
        if task.completion_status is None:
            self._controller.cancel_task(task, fl_ctx=self._context)


class _Fetched:
    """A large reply on its way from its site into a file without a name."""

    def __init__(
        self, site: str, ticket: Ticket, worked: float, seal: bytes, engine: Talking
    ) -> None:
        self._site, self._ticket, self._worked, self._seal = site, ticket, worked, seal
        self._engine = engine
        self._spool = Spool(in_memory=1)

    def fetch(self, heard: Heard, over: Callable[[], bool]) -> None:
        """Fetch all of it, then say so; in a thread of its own."""
        try:
            for part in parts(self._ticket, self._engine, self._site, over=over):
                self._spool.put(part)
        except RunError as error:
            self._spool.close()
            heard.put((self._site, functools.partial(_raise, error)))
        except Exception:  # whatever it is: nobody else hears of it in this thread
            self._spool.close()
            heard.put((self._site, lambda: _failed(self._site, "lost", self._worked)))
        else:
            heard.put((self._site, self._read))

    def _read(self) -> Delivery:
        try:
            reply = self._spool.get(0, self._ticket.size)
        finally:
            self._spool.close()
        return Delivery(self._site, reply, self._worked, self._seal)


def _alone(said: Callable[[], Delivery]) -> Generator[Delivery, None, None]:
    """What a site said, once; nothing else here keeps a large one."""
    delivery = said()
    if len(delivery.reply) > LARGE:
        free()
    yield delivery


def _raise(error: RunError) -> Delivery:
    raise error


def _failed(site: str, code: str, seconds: float) -> Delivery:
    return Delivery(site, encode(Failure(code, "", "", "")), seconds, heard=False)
