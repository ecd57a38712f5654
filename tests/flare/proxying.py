"""HTTP proxies on loopback: one that does its work, and any number that do not."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Mapping

from confide.settings.sitefile import Proxy


class Listening:
    """Takes connections on a port of this machine, each in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self.taken = 0
        """The connections so far."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                one, _ = self._listener.accept()
                self.taken += 1
                self._open.append(one)
                threading.Thread(target=self._guarded, args=(one,), daemon=True).start()

    def _guarded(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError), one:
            self.serve(one)

    def serve(self, one: socket.socket) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        """Drop every connection."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # or it would take one more
        self._listener.close()
        self.drop()

    def proxy(self, user: str = "", password_file: object = None) -> Proxy:
        return Proxy("127.0.0.1", self.port, user, password_file)  # type: ignore[arg-type]


class Saying(Listening):
    """A proxy that does `what` with each connection, once it has read what it is asked."""

    def __init__(self, what: Callable[[socket.socket], object]) -> None:
        self._what = what
        super().__init__()

    def serve(self, one: socket.socket) -> None:
        asked(one)
        self._what(one)


class ConnectProxy(Listening):
    """Connects to the `places` of this machine, by names that nobody else can resolve.

    Asks for `user:password` if they are given, and takes nothing while it is cut.
    """

    def __init__(self, places: Mapping[str, int], *, secret: str = "") -> None:
        self._places, self._secret, self._cut = dict(places), secret, False
        self.opened: list[str] = []
        """The targets that it has connected to, in their order."""
        self.in_vain = 0
        """The connections that came while it was cut."""
        super().__init__()

    def cut(self) -> None:
        """Drop every connection, and take none until it is mended."""
        self._cut = True
        self.drop()

    def mend(self) -> None:
        self._cut = False

    def serve(self, one: socket.socket) -> None:
        if self._cut:
            self.in_vain += 1
            return
        head = asked(one)
        secret = base64.b64encode(self._secret.encode()).decode()
        if self._secret and f"Proxy-Authorization: Basic {secret}\r\n" not in head:
            one.sendall(b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic realm=x\r\n\r\n")
            return
        target = head.split()[1]
        name = target.rpartition(":")[0]
        if self._places.get(target) is None or not head.startswith("CONNECT "):
            one.sendall(f"HTTP/1.1 403 No {name}\r\n\r\n".encode())
            return
        with socket.create_connection(("127.0.0.1", self._places[target])) as other:
            self._open.append(other)
            self.opened.append(target)
            one.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=passed, args=(other, one), daemon=True)
            back.start()
            passed(one, other)
            back.join()


def asked(one: socket.socket) -> str:
    """What the proxy is asked: the head of the message."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = one.recv(4096)
        if not part:
            raise ConnectionResetError
        head += part
    assert re.match(rb"CONNECT [^ ]+:\d+ HTTP/1.1\r\n", head)
    return head.decode()


def passed(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until one end closes, then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
