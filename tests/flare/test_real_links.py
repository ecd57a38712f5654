"""A site behind a slow link: long messages take as long as the link needs, and are sent once."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.flare.kit import SUBMITTED_AGAIN
from confide.flare.nvidia.lead import ANSWERED_WITHIN
from confide.runs.run import run
from contract.corpus import tiny
from flare.ports import free_port
from flare.real import Real, running
from flare.residents import stop
from flare.test_real_faults import through
from flare.test_real_runs import same

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("links"),
]

RATE = 100_000
"""Bytes a second, each way."""
OVERHEAD = 1_000_000
"""Bytes, each way: signs of life, what FLARE sends around messages, and greetings of TLS."""


class Slow:
    """Passes bytes on to a port of this machine, slowly, and counts them by direction."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.up = self.down = 0
        self._lock = threading.Lock()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            one, _ = self._listener.accept()
            other = socket.create_connection(("127.0.0.1", self._target))
            for end in (one, other):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            for way, source, sink in (("up", one, other), ("down", other, one)):
                given = (way, source, sink)
                threading.Thread(target=self._pass, args=given, daemon=True).start()

    def _pass(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(10_000):
                time.sleep(len(data) / RATE)  # this is the link, and not a wait
                sink.sendall(data)
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
        except OSError:
            pass
        for end in (source, sink):
            end.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    settings = tiny(tmp_path, "rounds=1", "model.bilstm_hidden=310", sites=2)
    with running(tmp_path, settings) as consortium:
        yield consortium


def test_long_messages_over_a_slow_link_are_sent_once(real: Real) -> None:
    """With FLARE's own settings the copies of one ask of 4 MB jam this link for ten minutes."""
    kit = real.kit("site-1")
    stop(kit)
    link = Slow(real.port)
    through(kit, link.port)
    real.start_one("site-1")
    told: list[str | None] = []
    done = real.run("slow", watch=lambda event: told.append(event.message))
    assert not any(SUBMITTED_AGAIN in (one or "") for one in told)
    run(real.settings, out=real.folder / "whole")
    same(real.folder / "whole", done.folder)
    [log] = [path.read_text() for path in kit.path.glob("*-*-*/log.txt")]
    assert "unknown req_id" not in log, "a copy came"
    asked = re.findall(r"getTask: (\w+) size: .* \((\d+) Bytes\) time: ([\d.]+)", log)
    assert [step for step, _, _ in asked].count("train") == 1
    size, seconds = next((int(n), float(s)) for step, n, s in asked if step == "train")
    assert seconds > ANSWERED_WITHIN, "what takes longer than that is not asked again"
    sent = [int(n) for n in re.findall(r"SubmitUpdate to: server. size: .*? \((\d+) Bytes\)", log)]
    assert size > 1e6 and max(sent) > 1e6
    assert link.down < 1.1 * sum(int(n) for _, n, _ in asked) + OVERHEAD
    assert link.up < 1.1 * sum(sent) + OVERHEAD
