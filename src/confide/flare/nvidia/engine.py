"""The engine over NVIDIA FLARE: one FLARE task per asked site, replies as they come."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Mapping, Sequence

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from confide.errors import EngineError
from confide.federation.engine import Delivery
from confide.federation.failures import Failure
from confide.federation.messages import encode
from confide.flare.nvidia.envelope import ask_of, replied
from confide.flare.nvidia.freeing import LARGE, free

_POLL = 0.02
"""Seconds between two checks of the tasks that are still open."""


class FlareEngine:
    """Asks sites through a controller's tasks; every site has its own task, and so its own bytes.

    Args:
        controller: its `broadcast` sends a task.
        context: FLARE's context of the controller's thread.
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
        sites: Sequence[str],
        gone: Callable[[str], bool],
    ) -> None:
        self._controller = controller
        self._context = context
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

        `seals` vouch for the asks (`flare.run.signing`). Raises EngineError if FLARE ends the run.
        """
        free()
        heard: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        open_tasks = {
            site: self._send(
                site, step, ask_of(round, data, seal=(seals or {}).get(site, b"")), heard
            )
            for site, data in sorted(asks.items())
        }
        start = time.monotonic()
        try:
            while open_tasks:
                if self._stop.triggered:
                    raise EngineError("the engine ended the run while sites were being asked")
                try:
                    delivery = heard.get(timeout=_POLL)
                except queue.Empty:
                    late = timeout is not None and time.monotonic() - start > timeout
                    for site, task in list(open_tasks.items()):
                        code = self._lost(site, task, late=late)
                        if code and heard.empty():
                            del open_tasks[site]
                            self._cancel(task)
                            yield _failed(site, code, time.monotonic() - start)
                    continue
                if len(delivery.reply) > LARGE:
                    free()
                if open_tasks.pop(delivery.site, None) is not None:
                    yield delivery
        finally:
            for task in open_tasks.values():
                self._cancel(task)

    def _send(
        self, site: str, step: str, ask: Shareable, heard: queue.SimpleQueue[Delivery]
    ) -> Task:
        start = time.monotonic()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            reply = replied(client_task.result)
            client_task.result = None  # FLARE would keep the bytes
            seconds = time.monotonic() - start
            if reply is None:
                heard.put(_failed(site, "lost", seconds))
            else:
                data, worked, seal = reply
                heard.put(Delivery(site, data, min(worked, seconds), seal))

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


def _failed(site: str, code: str, seconds: float) -> Delivery:
    return Delivery(site, encode(Failure(code, "", "", "")), seconds, heard=False)
