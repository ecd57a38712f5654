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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cases import each
from confide.errors import KitError, SettingsError
from confide.serve import app as running
from confide.serve.app import (
    FREE,
    Address,
    ServedPages,
    application,
    hosts_of,
    is_here,
    listen,
    listening,
    token_of,
)
from confide.serve.gate import CallerLimits
from serve.served import models


def test_an_address_beyond_this_machine_needs_a_token() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(SettingsError, match="--token-file"):
            listen(ServedPages(models()), Address(host, 0), say=print)
    with pytest.raises(SettingsError, match="--token-file"):
        listen(ServedPages(models()), Address.of("https://notes.example=127.0.0.1:0"), say=print)


@each("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_what_is_here(host: str) -> None:
    assert is_here(host)


def test_a_token_is_made_once_for_its_owner(tmp_path) -> None:
    file = tmp_path / "token"
    token = token_of(file)
    assert token and len(token) >= 43 and token_of(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@each("mode", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_a_token_that_others_can_read_is_refused(tmp_path, mode: int) -> None:
    file = tmp_path / "token"
    token = token_of(file)
    file.chmod(mode)
    with pytest.raises(SettingsError, match=r"others can read.*mode 06") as caught:
        token_of(file)
    assert token not in str(caught.value)
    file.chmod(0o400)
    assert token_of(file) == token


def test_a_token_that_is_no_file_is_refused(tmp_path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(SettingsError, match="cannot be used"):
            token_of(path)


@each("words", ["", "short", "x" * 31, "a b " * 20, "é" * 50])
def test_a_weak_token_is_refused(tmp_path, words: str) -> None:
    (tmp_path / "token").write_text(words)
    (tmp_path / "token").chmod(0o600)
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
        ((), ServedPages({}), ()),
        ((), ServedPages({}), [tmp_path / "a.txt"]),
        ((str(tmp_path), str(tmp_path)), ServedPages({}), ()),
    ):
        with pytest.raises(SettingsError):
            running.run_server(words, at, pages=pages, texts=texts, say=print)
    free = Address("127.0.0.1", 0, FREE)
    with pytest.raises(SettingsError, match="could agree for the site"):
        running.run_server((), free, pages=ServedPages({}, kit=tmp_path), say=print)


def test_a_kit_that_is_none_is_said_at_the_start(tmp_path) -> None:
    at = Address("127.0.0.1", 0)
    with pytest.raises(KitError):
        running.run_server((), at, pages=ServedPages({}, kit=tmp_path / "none"), say=print)
    asked = ServedPages({}, corrections=tmp_path, asked="study.toml")
    with pytest.raises(SettingsError, match="--kit"):
        running.run_server((str(tmp_path),), at, pages=asked, say=print)


def _started(monkeypatch, at: Address) -> tuple[TestClient, list[str]]:
    """A browser at what `listen` would serve, and what it said."""
    apps, told = [], []

    class Server:
        def run(self, sockets) -> None:
            sockets[0].close()

    monkeypatch.setattr(running, "_server", lambda app, limits: apps.append(app) or Server())
    listen(ServedPages(models()), at, say=told.append)
    where = told[0].removeprefix("serving at ").partition("/enter")[0].rstrip("/")
    return TestClient(apps[0], base_url=where, follow_redirects=False), told


def test_every_start_makes_a_token_and_says_it(monkeypatch) -> None:
    there, told = _started(monkeypatch, Address("127.0.0.1", 0))
    token = told[0].partition("/enter#")[2]
    assert len(token) >= 43 and "bearer token" in told[1]
    assert there.get("/v1/models").status_code == 401
    own = {"authorization": f"Bearer {token}"}
    assert there.get("/v1/models", headers=own).status_code == 200
    _, again = _started(monkeypatch, Address("127.0.0.1", 0))
    assert again[0].partition("#")[2] not in ("", token)


def test_a_token_of_a_file_stays(monkeypatch, tmp_path) -> None:
    at = Address("127.0.0.1", 0, tmp_path / "token")
    _, told = _started(monkeypatch, at)
    assert told[0].endswith(f"/enter#{(tmp_path / 'token').read_text().strip()}") and not told[1:]


def test_who_wishes_lets_everyone_on_this_machine_in(monkeypatch) -> None:
    there, told = _started(monkeypatch, Address.of("127.0.0.1:0", FREE))
    assert "#" not in told[0] and there.get("/v1/models").status_code == 200


@each("at", ["0.0.0.0:0", "https://notes.example=127.0.0.1:0"])
def test_others_never_enter_freely(at: str) -> None:
    with pytest.raises(SettingsError, match="--token-file"):
        listen(ServedPages(models()), Address.of(at, FREE), say=print)


@pytest.fixture
def told() -> list[str]:
    """What the server said of errors of its own."""
    return []


@pytest.fixture
def port(told, monkeypatch):
    """A real server in a thread; gives its port."""
    monkeypatch.setattr(running.Patient, "most_seconds", 0.5)
    limits = CallerLimits(slow=1.0, pad=0.0, connections=20)
    taken = listening("127.0.0.1", 0)
    port = taken.getsockname()[1]
    hosts = hosts_of("127.0.0.1", port, ())
    app = application(ServedPages(models(limits), limits), hosts=hosts, tell=told.append)
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


@each("path", ["/v1/predict", "/healthz"])
def test_an_ask_that_says_twice_where_it_ends_is_refused(port: int, path: str) -> None:
    """A proxy before us might believe the other of the two, and pass on half of the next ask."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    body = b'{"texts": ["a"]}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
    for first, second in ((both, ""), ("", both)):
        sent = (head + first + "X: y\r\n" + second + "\r\n").encode() + chunked
        found = _raw(port, sent)
        assert found.startswith(b"HTTP/1.1 400") and b"connection: close" in found.lower()
    alone = (head + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n").encode()
    assert b"HTTP/1.1 400" not in _raw(port, alone + chunked)


def test_an_ask_that_proposes_http_2_is_answered_all_the_same(port: int) -> None:
    """As Java's client asks, so INCEpTION too; the second ask takes the same connection."""
    body = json.dumps({"texts": ["drug1"]}).encode()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        f"HTTP2-Settings: AAEAAEAAAAIAAAAA\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
        for _ in range(2):
            one.sendall(head.encode() + body)
            found = b""
            while not found.endswith(b"}]}"):
                part = one.recv(65536)
                assert part, found
                found += part
            assert found.startswith(b"HTTP/1.1 200") and b"DRUG" in found


@pytest.mark.slow
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


@pytest.mark.slow
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


WRONG_BODIES = [
    b"", b"{", b"null", b"[]", b'"texts"', b"\xff\xfe", b"NaN", b'{"texts": NaN}', b"[" * 20_000,
    b'{"texts": []}', b'{"texts": "drug1"}', b'{"texts": [1]}', b'{"texts": [null]}',
    b'{"texts": ["a"], "more": 1}', b'{"texts": ["a"], "model": "none"}', b'{"texts": [{}]}',
    b'{"texts": ["a"], "threshold": "x"}', b'{"texts": ["a"], "threshold": 1e999}',
    b'{"texts": ["\\ud800"]}', b'{"texts": [{"text": "a", "id": ""}]}',
    b'{"texts": [{"text": "a", "entities": [{"type": "T", "start": 0, "end": 9}]}]}',
    b'{"texts": [{"text": "a", "entities": [{"type": "T", "start": -1, "end": 1}]}]}',
    b'{"texts": ["a"], "texts": ["b"]' + b" " * 9_000, json.dumps({"texts": ["a"] * 300}).encode(),
    json.dumps({"texts": ["a" * 100_001]}).encode(), b'{"texts": ["a"], "model": 1e400}',
]  # fmt: skip


def _wrong(port: int, chance: random.Random) -> bytes:
    """An ask with something wrong in its line, its headers, its length or its body."""
    body = chance.choice(WRONG_BODIES)
    host, path, method = f"127.0.0.1:{port}", "/v1/predict", "POST"
    kind, length, more = "application/json", str(len(body)), ""
    match chance.randrange(9):
        case 0:
            host = chance.choice(["evil.example", "", f"{host}.evil", "localhost:1"])
        case 1:
            path = chance.choice(["/../../etc/passwd", "/static/../app.py", "/%00", "/v2", "//"])
        case 2:
            method = chance.choice(["PUT", "DELETE", "TRACE", "OPTIONS", "GET" * 200, "post"])
        case 3:
            kind = chance.choice(["text/plain", "", "application/json;" * 50, "image/png"])
        case 4:
            length = chance.choice(["-1", "9" * 400, "x", "1e3", str(5 << 20), f"{len(body)}, 1"])
        case 5:
            more = chance.choice([
                "Origin: null\r\n", "Origin: http://evil.example\r\n", "Host: other\r\n",
                "Sec-Fetch-Site: cross-site\r\n", "Transfer-Encoding: chunked\r\n",
                "Transfer-Encoding: gzip\r\n", "Content-Length: 3\r\n", f"Cookie: {'=' * 9000}\r\n",
                "Upgrade: websocket\r\nConnection: upgrade\r\n", "Expect: 200\r\n", "\0: x\r\n",
            ])  # fmt: skip
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _answer(port: int, sent: bytes) -> bytes:
    """What comes back; nothing if the server closes while we still send."""
    try:
        return _raw(port, sent)
    except ConnectionError:
        return b""


def test_a_thousand_wrong_asks_over_the_network_are_refused_one_by_one(port, told) -> None:
    """Each gets an answer of 4xx, or its connection is closed, and nothing of it is repeated."""
    chance = random.Random(11)
    asks = [_wrong(port, chance) for _ in range(1000)]
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda sent: _answer(port, sent), asks))
    for sent, found in zip(asks, answers, strict=True):
        assert not found or found[9:10] == b"4", (sent[:300], found[:300])
        assert b"Traceback" not in found and b"evil" not in found and b"passwd" not in found
    kinds = {found[9:12] for found in answers}
    assert kinds >= {b"400", b"403", b"404", b"405", b"413", b"415", b"421", b"422"}
    assert _ask(port, "/v1/predict", json.dumps({"texts": ["drug1"]}).encode()) == 200
    assert told == [], "none of them is an error of the server's own"


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
