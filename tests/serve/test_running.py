"""Addresses and tokens, and a real server under slow, broken and many callers."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import stat
import threading
import time
import urllib.request
from contextlib import closing

import pytest

from confide.errors import SettingsError
from confide.serve import running
from confide.serve.app import Shown, application
from confide.serve.limits import Limits
from confide.serve.running import Address, hosts_of, is_here, listen, listening, token_of
from serve.served import models


def test_an_address_beyond_this_machine_needs_a_token() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(SettingsError, match="--token-file"):
            listen(Shown(models()), Address(host, 0), say=print)
    with pytest.raises(SettingsError, match="--token-file"):
        listen(Shown(models()), Address.of("https://notes.example=127.0.0.1:0"), say=print)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_what_is_here(host: str) -> None:
    assert is_here(host)


def test_a_token_is_made_once_for_its_owner(tmp_path) -> None:
    file = tmp_path / "token"
    token = token_of(file)
    assert token and len(token) >= 43 and token_of(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token_of(None) is None


@pytest.mark.parametrize("words", ["", "short", "x" * 31, "a b " * 20, "é" * 50])
def test_a_weak_token_is_refused(tmp_path, words: str) -> None:
    (tmp_path / "token").write_text(words)
    with pytest.raises(SettingsError):
        token_of(tmp_path / "token")


def test_addresses_are_read() -> None:
    assert Address.of("127.0.0.1:80") == Address("127.0.0.1", 80)
    assert Address.of("[::1]:8765") == Address("::1", 8765)
    proxied = Address.of("https://notes.example=127.0.0.1:9")
    assert proxied.names == ("notes.example",) and proxied.secure
    for wrong in ("", "x", "x:y", ":80", "a:99999", "http://x=127.0.0.1:9", "a:-1"):
        with pytest.raises(SettingsError):
            Address.of(wrong)


def test_the_names_that_are_served() -> None:
    assert hosts_of("127.0.0.1", 9, ()) == {"127.0.0.1:9", "localhost:9"}
    assert hosts_of("::1", 9, ()) == {"[::1]:9", "127.0.0.1:9", "localhost:9"}
    assert "notes.example" in hosts_of("127.0.0.1", 9, ["notes.example"])
    assert "0.0.0.0:9" in hosts_of("0.0.0.0", 9, ()) and len(hosts_of("0.0.0.0", 9, ())) == 1


def test_a_taken_address_is_said() -> None:
    with closing(listening("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="port"):
        listening("127.0.0.1", taken.getsockname()[1])


def test_nothing_to_serve_and_other_mistakes(tmp_path) -> None:
    at = Address("127.0.0.1", 0)
    for words, pages, texts in (
        ((), Shown({}), ()),
        ((), Shown({}, kit=tmp_path), ()),
        ((), Shown({}), [tmp_path / "a.txt"]),
        ((str(tmp_path), str(tmp_path)), Shown({}), ()),
    ):
        with pytest.raises(SettingsError):
            running.serve(words, at, pages=pages, texts=texts, say=print)


@pytest.fixture
def port(monkeypatch):
    """A real server in a thread; gives its port."""
    monkeypatch.setattr(running.Patient, "most_seconds", 0.5)
    limits = Limits(slow=1.0, pad=0.0, connections=20)
    taken = listening("127.0.0.1", 0)
    port = taken.getsockname()[1]
    hosts = hosts_of("127.0.0.1", port, ())
    app = application(Shown(models(limits), limits), hosts=hosts, tell=lambda line: None)
    server = running._server(app, limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[taken])))
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield port
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def _ask(port: int, path: str = "/healthz", body: bytes | None = None) -> int:
    headers = {"content-type": "application/json"} if body else {}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    with urllib.request.urlopen(asked, timeout=10) as found:
        return found.status


def _raw(port: int, sent: bytes, *, seconds: float = 5.0) -> bytes:
    """What comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as one:
        one.sendall(sent)
        found = b""
        while part := one.recv(65536):
            found += part
        return found


def test_a_caller_that_never_ends_its_headers_is_closed(port: int) -> None:
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: x", b"GET /healthz HTTP/1.1\r\nX: "):
        start = time.monotonic()
        _raw(port, sent)
        assert time.monotonic() - start < 4


def test_a_second_ask_that_comes_in_drops_is_closed(port: int) -> None:
    whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(whole)
        assert b"200 OK" in one.recv(65536)
        start = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - start < 8:
                one.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() - start < 4


def test_a_body_that_never_ends_is_closed(port: int) -> None:
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    ).encode()
    start = time.monotonic()
    assert b" 408 " in _raw(port, head, seconds=20)
    assert time.monotonic() - start < 10


def test_bytes_that_are_no_http_are_survived(port: int) -> None:
    chance = random.Random(3)
    for _ in range(50):
        _raw(port, chance.randbytes(chance.randint(1, 400)) + b"\r\n\r\n")
    _raw(port, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n")
    assert _ask(port) == 200


def test_the_server_says_nothing_of_itself(port: int) -> None:
    sent = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    head = _raw(port, sent.encode()).partition(b"\r\n\r\n")[0].lower()
    assert b"server:" not in head and b"uvicorn" not in head


def test_many_that_hold_their_connections_are_turned_away_and_go(port: int) -> None:
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    time.sleep(1.5)
    body = json.dumps({"texts": ["drug1"]}).encode()
    assert _ask(port, "/v1/predict", body) == 200
    for one in held:
        one.close()
