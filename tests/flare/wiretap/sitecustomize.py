"""Only for tests: listens at the last place before TLS, and holds runs, in processes of kits.

Python runs this file by itself where its folder is on PYTHONPATH, and it does nothing where
neither WIRETAP nor GATES names a folder. In WIRETAP it keeps, for each process:

KIT-PID.up, KIT-PID.down   what FLARE hands to its transport, and what the transport hands to FLARE:
                           a length of eight bytes before each frame
KIT-PID.local              the same of what goes to another process of the kit
KIT-PID.tls                one line for each piece of plain bytes that is given to TLS: its length
KIT-PID.connected          one line for each address that the process opens a stream to

And it fails where it is told to: a file KIT.raise names one of `PLACES` and a text, and the next
call of it raises that text.

In GATES a file KIT.shut holds a number of a round: the site takes its time with whatever it is
asked from that round on, for as long as the file is there. And a file KIT.kill holds the name of a
step, a round and who: when the site is asked that, its process kills itself with -9, once, and
before that its resident one if who is "site". A file KIT.hold names a step and a round: when the
site is asked that, it makes KIT.held, and waits until KIT.hold is gone. SILENCE are the seconds
after which a silent process counts as lost. While a file KIT.disk holds the system's number of an
error, every file that the kit opens to write in a site's memory fails with it. While a file
KIT.unborn says "dies" or "hangs", a process of a run does that as soon as it is started.

With PARTS messages of more than that many bytes are fetched in parts of half as many. KIT.parts in
GATES then has a line for each part that the kit was asked for; and where there is a file
KIT.part-kill, the kit's process kills itself with -9 when it is next asked for one, once.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLACES = (
    "confide.federation.site.SiteHost._answer",
    "confide.flare.site.SiteHome._answer",
    "confide.flare.site.SiteHome._note",
    "confide.flare.nvidia.components.ConfideExecutor.execute",
)
"""In a step, around it, where it is noted, and in what FLARE itself calls."""
_lock = threading.Lock()


def _keep(what: str, data: bytes) -> None:
    path = FOLDER / f"{KIT}-{os.getpid()}.{what}"
    with _lock, open(path, "ab", buffering=0) as file:
        file.write(data)


def _before(owner: Any, name: str, look: Callable[..., None]) -> None:
    """Let `look` see the arguments of every call of a method."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def looked_at(*given: Any, **more: Any) -> Any:
        look(*given)
        return method(*given, **more)

    setattr(owner, name, looked_at)


def _frame(what: str) -> Callable[..., None]:
    return lambda connection, frame: _keep(what, len(frame).to_bytes(8, "big") + bytes(frame))


def _listen() -> None:
    from nvflare.fuel.f3.connection import Connection
    from nvflare.fuel.f3.drivers.aio_http_driver import WsConnection
    from nvflare.fuel.f3.drivers.socket_conn import SocketConnection

    _before(WsConnection, "send_frame", _frame("up"))
    _before(SocketConnection, "send_frame", _frame("local"))
    _before(Connection, "process_frame", _frame("down"))
    _before(ssl.SSLObject, "write", lambda _, data: _keep("tls", b"%d\n" % len(data)))
    sys.addaudithook(_connected)


def _connected(event: str, given: tuple[Any, ...]) -> None:
    if event == "socket.connect" and given[0].type == socket.SOCK_STREAM:
        _keep("connected", f"{given[1]}\n".encode())


def _fail_when_told() -> None:
    from importlib import import_module

    for place in PLACES:
        module, kind, method = place.rsplit(".", 2)
        _before(getattr(import_module(module), kind), method, functools.partial(_perhaps, place))


def _perhaps(place: str, *_: Any) -> None:
    told = FOLDER / f"{KIT}.raise"
    if not told.exists():
        return
    where, _, text = told.read_text(encoding="utf-8").partition("\n")
    if where == place:
        told.unlink()
        raise ValueError(text)


def _never_start_when_told() -> None:
    told = GATES / f"{KIT}.unborn"
    if told.exists():
        if told.read_text() == "dies":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSTOP)


def _wait_when_told() -> None:
    from confide.flare.site import SiteHome

    _before(SiteHome, "answer", _at_the_gate)


def _spoil_the_disk_when_told() -> None:
    told, writes = GATES / f"{KIT}.disk", os.O_WRONLY | os.O_RDWR

    def refuse(event: str, given: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(given[2], int) or not given[2] & writes:
            return
        path = given[0]
        if isinstance(path, str) and f"/{KIT}/memory/" in path and told.exists():
            number = int(told.read_text())
            raise OSError(number, os.strerror(number), path)

    sys.addaudithook(refuse)


def _at_the_gate(home: Any, step: str, round: int, *_: Any) -> None:
    fatal = GATES / f"{KIT}.kill"
    if fatal.exists() and fatal.read_text().startswith(f"{step} {round} "):
        who = fatal.read_text().split()[-1]
        fatal.unlink()
        if who == "site":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    hold = GATES / f"{KIT}.hold"
    if hold.exists() and hold.read_text() == f"{step} {round}":
        hold.with_suffix(".held").touch()
        while hold.exists():
            time.sleep(0.05)
    while round >= _shut_from():
        time.sleep(0.05)


def _lose_patience_sooner() -> None:
    from confide.flare.nvidia import components

    components.SILENCE = float(os.environ["SILENCE"])


def _in_parts() -> None:
    from confide.federation import messages
    from confide.flare.nvidia import engine

    messages.WHOLE = engine.WHOLE = int(os.environ["PARTS"])
    engine.PART = engine.WHOLE // 2
    _before(engine.Outbox, "answer", _asked_for_a_part)


def _asked_for_a_part(*_: Any) -> None:
    with _lock, open(GATES / f"{KIT}.parts", "a") as file:
        file.write("asked\n")
    fatal = GATES / f"{KIT}.part-kill"
    if fatal.exists():
        fatal.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _shut_from() -> float:
    try:
        return float((GATES / f"{KIT}.shut").read_text())
    except FileNotFoundError:
        return float("inf")


if "CONFIDE_KIT" in os.environ:
    KIT = Path(os.environ["CONFIDE_KIT"]).name
    job = any("worker_process" in word for word in sys.orig_argv)
    if "WIRETAP" in os.environ:
        FOLDER = Path(os.environ["WIRETAP"])
        _listen()
        if job:
            _fail_when_told()
    if "GATES" in os.environ and job:
        GATES = Path(os.environ["GATES"])
        _never_start_when_told()
        _wait_when_told()
        _spoil_the_disk_when_told()
    runner = any("runner_process" in word for word in sys.orig_argv)
    if "SILENCE" in os.environ and runner:
        _lose_patience_sooner()
    if "PARTS" in os.environ and (job or runner):
        GATES = Path(os.environ["GATES"])
        _in_parts()
