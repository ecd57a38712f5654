"""Ending what is under way: nobody who waits for the engine waits for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from confide.errors import FederationError
from confide.federation.engines import WorkerEngine
from confide.federation.events import Event
from confide.federation.federation import Federation
from confide.federation.ledger import Ledger
from confide.federation.messages import encode
from federation.toys import MULTIPLY, ask, hosting, sequential, specs


def test_a_listener_that_raises_lets_the_engine_go(tmp_path: Path) -> None:
    """The engine's delivery is closed, so that the next ask does not wait for the last one."""
    engine = sequential(tmp_path)
    closed = []

    class Watched:
        sites = engine.sites

        def deliver(self, step, round, *, asks, timeout):
            try:
                yield from engine.deliver(step, round, asks=asks, timeout=timeout)
            finally:
                closed.append(round)

    def watch(event: Event) -> None:
        if event.kind == "reply":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Federation(Watched(), seed=1, ledger=Ledger(), watch=watch).sum(MULTIPLY, ask(""), round=1)
    assert closed == [1]


def test_a_stopped_engine_ends_those_who_wait(tmp_path: Path) -> None:
    engine = WorkerEngine(specs(tmp_path, 1), hosting(), workers=1, threads=1)
    ended: list[BaseException] = []

    def wait_for_a_slow_site() -> None:
        data = encode(ask("site-1=sleep"))
        try:
            list(engine.deliver("multiply", 1, asks={"site-1": data}, timeout=None))
        except FederationError as error:
            ended.append(error)

    try:
        waiting = threading.Thread(target=wait_for_a_slow_site)
        waiting.start()
        time.sleep(0.5)
        engine.stop()
        waiting.join(timeout=300)
        assert not waiting.is_alive()
        assert "stopped" in str(ended[0])
        with pytest.raises(FederationError, match="stopped"):
            list(engine.deliver("multiply", 2, asks={"site-1": encode(ask(""))}, timeout=None))
    finally:
        engine.close()
