"""What stands before every page: names, origins, the token, sizes, slow callers, headers.

- An ask that says in two ways where its body ends is refused: a proxy could read it otherwise.
- Host must be a name that we serve, so a page elsewhere cannot reach us by DNS rebinding.
- A POST from a browser must come from our own origin; one that browsers cannot send across
  origins without asking first (JSON) may come without an Origin, from a program.
- With a token, everything but its own page asks for it, in constant time. A browser exchanges it
  for a cookie that scripts cannot read and other sites cannot send.
- Nothing of an error reaches a log but its class and place: its message could hold text.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from confide.serve.limits import USUAL, Limits

COOKIE: Final = "confide"
ENTER: Final = "/enter"
OPEN: Final = (ENTER, "/healthz")
"""Pages that need no token, besides our own files under /static/."""

HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        b" connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
        b" require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # no-referrer would make browsers send our own forms with Origin: null
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Refused(Exception):
    """An ask that is answered with an error. `what` is our own words, never the caller's."""

    def __init__(self, status: int, code: str, what: str) -> None:
        self.status, self.code, self.what = status, code, what
        super().__init__(what)


class Doors:
    """Who may enter: those with the token, or with a cookie that it was exchanged for."""

    def __init__(self, token: str | None, *, lasts: float) -> None:
        self._token = None if token is None else _digest(token)
        self._lasts = lasts
        self._open: dict[bytes, float] = {}

    @property
    def locked(self) -> bool:
        """Whether a token is asked for."""
        return self._token is not None

    def knows(self, token: str) -> bool:
        """Whether this is the token; takes the same time for every wrong one."""
        return self._token is not None and hmac.compare_digest(_digest(token), self._token)

    def opened(self) -> str:
        """A new cookie's value."""
        now = time.monotonic()
        self._open = {key: until for key, until in self._open.items() if until > now}
        value = secrets.token_urlsafe(32)
        self._open[_digest(value)] = now + self._lasts
        return value

    def admits(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether an ask with these headers may pass."""
        if not self.locked:
            return True
        scheme, _, token = _words(headers.get(b"authorization")).partition(" ")
        if scheme.lower() == "bearer" and self.knows(token.strip()):
            return True
        value = cookie_parser(_words(headers.get(b"cookie"))).get(COOKIE, "")
        return self._open.get(_digest(value), 0.0) > time.monotonic()


class Gate:
    """The outermost ASGI application; passes on what is allowed.

    Args:
        inner: what answers.
        hosts: the values of Host that are served, such as "localhost:8765".
        doors: who may enter.
        limits: sizes and times.
        tell: called with one line about an error of our own, without its message.
        secure: whether browsers reach us over https.
    """

    def __init__(
        self,
        inner: ASGIApp,
        *,
        hosts: frozenset[str],
        doors: Doors,
        limits: Limits = USUAL,
        tell: Callable[[str], None],
        secure: bool = False,
    ) -> None:
        self._inner, self._hosts, self._doors = inner, hosts, doors
        self._limits, self._tell = limits, tell
        self._scheme = "https" if secure else "http"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ask."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        out = _Out(send, self._limits.slow)
        try:
            self._check(scope)
            await self._inner(scope, self._bounded(scope, receive), out)
        except Refused as refused:
            await out.refuse(refused)
        except HTTPException as error:  # our files, and what starlette itself refuses
            await out.refuse(Refused(error.status_code, "refused", "there is nothing like that"))
        except TimeoutError:
            raise  # the caller takes nothing: the connection is closed
        except Exception as error:
            self._tell(place_of(error))
            await out.refuse(Refused(500, "internal", "something went wrong here"))

    def _check(self, scope: Scope) -> None:
        """Raise Refused unless the ask may pass."""
        given: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(given)
        hosts = [value for name, value in given if name == b"host"]
        if len(hosts) != 1 or _words(hosts[0]).lower() not in self._hosts:
            raise Refused(421, "wrong-host", "this address is not served under that name")
        if {b"transfer-encoding", b"content-length"} <= headers.keys():
            raise Refused(400, "two-lengths", "an ask says once where it ends")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise Refused(405, "method", "only GET, HEAD and POST are answered")
        if scope["method"] == "POST":
            self._own(scope["path"], headers, _words(hosts[0]).lower())
        path = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return
        if not self._doors.admits(headers):
            if scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b""):
                raise Refused(303, ENTER, "the token is needed")
            raise Refused(401, "token", "the token is needed: Authorization: Bearer TOKEN")

    def _own(self, path: str, headers: Mapping[bytes, bytes], host: str) -> None:
        """Raise Refused if a POST could come from another site's page."""
        origin = headers.get(b"origin")
        fetched = headers.get(b"sec-fetch-site", b"same-origin")
        if origin is None and not path.startswith("/v1/"):
            raise Refused(403, "origin", "this is sent by our own pages only")
        if fetched != b"same-origin" or (
            origin is not None and _words(origin).lower() != f"{self._scheme}://{host}"
        ):
            raise Refused(403, "origin", "another site's page sent this")

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """`receive`, with a limit on the body's bytes and on the time that it takes."""
        most = self._limits.body
        for name, value in scope["headers"]:
            if name == b"content-length" and not (value.isdigit() and int(value[:13]) <= most):
                raise Refused(413, "too-large", f"a body has at most {most} bytes")
        deadline = asyncio.get_running_loop().time() + self._limits.slow
        read, done = 0, False

        async def bounded() -> Message:
            nonlocal read, done
            if done:
                return await receive()
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                raise Refused(408, "slow", "the body took too long") from None
            read += len(message.get("body", b""))
            done = not message.get("more_body", False)
            if read > most:
                raise Refused(413, "too-large", f"a body has at most {most} bytes")
            return message

        return bounded


class _Out:
    """`send`, with our headers, and a limit on the time that a caller takes for each piece."""

    def __init__(self, send: Send, slow: float) -> None:
        self._send, self._slow, self._begun = send, slow, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            there = {name.lower() for name, _ in message.get("headers", ())}
            own = [pair for pair in HEADERS if pair[0] not in there]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await asyncio.wait_for(self._send(message), self._slow)

    async def refuse(self, refused: Refused) -> None:
        """Answer with an error, unless an answer has begun: then the connection just ends."""
        if self._begun:
            raise TimeoutError from None
        body = json.dumps({"error": refused.code, "what": refused.what}).encode()
        headers = [(b"content-type", b"application/json")]
        if refused.status == 303:
            headers, body = [(b"location", refused.code.encode())], b""
        elif refused.status == 503:
            headers.append((b"retry-after", b"1"))
        elif refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refused.status in (400, 408, 413):
            headers.append((b"connection", b"close"))
        headers.append((b"content-length", str(len(body)).encode()))
        await self({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def place_of(error: BaseException) -> str:
    """An error's class and the place in our code that it came from, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    at = f" at {Path(last.filename).name}:{last.lineno}" if last else ""
    return f"{type(error).__name__}{at}"


def _words(value: bytes | None) -> str:
    return (value or b"").decode("latin-1")


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()
