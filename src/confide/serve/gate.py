"""The gate before every page: names, origins, the token, sizes, slow callers, headers, parsing.

- An ask that says in two ways where its body ends is refused: a proxy could read it otherwise.
- Host must be a name that we serve, so a page elsewhere cannot reach us by DNS rebinding.
- A POST from a browser must come from our own origin; one that browsers cannot send across
  origins without asking first (JSON) may come without an Origin, from a program.
- With a token, everything but its own page asks for it, in constant time. A browser exchanges it
  for a cookie that scripts cannot read and other sites cannot send. Annotation tools have a key
  that is made from it, for predictions alone.
- Nothing of an error reaches a log but its class and place: its message could hold text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from confide.files import decode_json
from confide.settings.reading import expected, own_words
from confide.text.document import Document, Entity
from confide.text.segment import CODES, Splitting, into_sentences
from confide.words import templates

# --- Limits of a caller
#
# One caller may ask the server for this much, and take this long.


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """Sizes in bytes and characters, times in seconds.

    `waiting` counts the asks that wait for one model. A caller has `slow` seconds to send its body,
    and as long to take each piece of the answer.
    """

    body: int = 4 << 20
    characters: int = 100_000
    texts: int = 256
    waiting: int = 32
    connections: int = 128
    slow: float = 20.0
    pad: float = 0.02
    streams: int = 16
    pool: int = 20_000
    session: float = 12 * 3600.0


USUAL = CallerLimits()


COOKIE: Final = "confide"
ENTER: Final = "/enter"
TOOLS: Final = ("/v1/labelstudio/", "/v1/inception/")
"""Addresses for annotation tools, which may enter with a key of their own."""
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


_WITH: Final = {
    401: {"www-authenticate": "Bearer"},
    503: {"retry-after": "1"},
    **{status: {"connection": "close"} for status in (400, 408, 413)},
}
"""Headers that go with an error, by its status."""


class HttpError(Exception):
    """An error to answer with. `what` is in our own words, never the caller's."""

    def __init__(self, status: int, code: str, what: str) -> None:
        self.status, self.code, self.what = status, code, what
        super().__init__(what)

    def answer(self) -> Response:
        """The answer that says so; 303 leads to the page that is its code."""
        if self.status == 303:
            return RedirectResponse(self.code, 303)
        body = {"error": self.code, "what": self.what}
        return JSONResponse(body, self.status, _WITH.get(self.status))


class Doors:
    """Who may enter: those with the token, or with a cookie that it was exchanged for."""

    def __init__(self, token: str | None, *, lasts: float) -> None:
        self._token = None if token is None else _digest(token)
        self._lasts = lasts
        self._open: dict[bytes, float] = {}

    @property
    def locked(self) -> bool:
        """True if a token is asked for."""
        return self._token is not None

    def is_token(self, token: str) -> bool:
        """Return whether this is the token; takes the same time for every wrong one."""
        return self._token is not None and hmac.compare_digest(_digest(token), self._token)

    def new_session(self) -> str:
        """A new cookie's value."""
        now = time.monotonic()
        self._open = {key: until for key, until in self._open.items() if until > now}
        value = secrets.token_urlsafe(32)
        self._open[_digest(value)] = now + self._lasts
        return value

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return whether an ask with these headers may pass."""
        if not self.locked:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(token.strip()):
            return True
        value = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return self._open.get(_digest(value), 0.0) > time.monotonic()

    @property
    def tool_key(self) -> str:
        """The key of annotation tools, which opens `TOOLS` alone; empty if nothing is locked.

        Tools keep it in the clear and show it in addresses, so it neither is the token nor tells
        it.
        """
        if self._token is None:
            return ""
        made = hmac.digest(self._token, b"annotation tools", "sha256")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def admits_tool(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether a tool with its key asks: as the password of HTTP Basic, or in the path.

        In the path it is the part behind the model's name.
        """
        if not path.startswith(TOOLS):
            return False
        scheme, _, given = headers.get("authorization", "").partition(" ")
        try:
            both = base64.b64decode(given, validate=True) if scheme.lower() == "basic" else b""
        except (binascii.Error, ValueError):
            both = b""
        password = both.partition(b":")[2].decode("utf-8", "replace")
        inner, own = [*path.split("/"), "", ""][4], _digest(self.tool_key)
        return any(hmac.compare_digest(_digest(one), own) for one in (password, inner))


@dataclass(frozen=True)
class Gate:
    """The outermost ASGI application; passes on what is allowed.

    Attributes:
        inner: what answers.
        hosts: the values of Host that are served, such as "localhost:8765".
        doors: who may enter.
        tell: called with one line about an error of our own, without its message.
        limits: sizes and times.
        secure: whether browsers reach us over https.
    """

    inner: ASGIApp
    hosts: frozenset[str]
    doors: Doors
    tell: Callable[[str], None]
    limits: CallerLimits = USUAL
    secure: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ask."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        out = _Out(send, self.limits.slow)
        try:
            self._check(scope)
            await self.inner(scope, self._bounded(scope, receive), out)
            return
        except HttpError as error:
            refused = error
        except HTTPException as error:  # our files, and what starlette itself refuses
            refused = HttpError(error.status_code, "refused", "there is nothing like that")
        except TimeoutError:
            raise  # the caller takes nothing: the connection is closed
        except Exception as error:
            self.tell(error_place(error))
            refused = HttpError(500, "internal", "something went wrong here")
        if out.begun:
            raise TimeoutError from None  # an answer has begun: the connection just ends
        await refused.answer()(scope, receive, out)

    def _check(self, scope: Scope) -> None:
        """Raise HttpError unless the ask may pass."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "").lower()
        if len(headers.getlist("host")) != 1 or host not in self.hosts:
            raise HttpError(421, "wrong-host", "this address is not served under that name")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise HttpError(400, "two-lengths", "an ask says once where it ends")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise HttpError(405, "method", "only GET, HEAD and POST are answered")
        if scope["method"] == "POST":
            self._own(path, headers, host)
        if path in OPEN or path.startswith("/static/"):
            return
        if not (self.doors.admits(headers) or self.doors.admits_tool(path, headers)):
            if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                raise HttpError(303, ENTER, "the token is needed")
            raise HttpError(401, "token", "the token is needed: Authorization: Bearer TOKEN")

    def _own(self, path: str, headers: Headers, host: str) -> None:
        """Raise HttpError if a POST could come from another site's page."""
        origin, scheme = headers.get("origin"), "https" if self.secure else "http"
        if origin is None and not path.startswith("/v1/"):
            raise HttpError(403, "origin", "this is sent by our own pages only")
        elsewhere = origin is not None and origin.lower() != f"{scheme}://{host}"
        if elsewhere or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HttpError(403, "origin", "another site's page sent this")

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """`receive`, with a limit on the body's bytes and on the time that it takes."""
        most = self.limits.body
        for value in Headers(scope=scope).getlist("content-length"):
            if not (value.isascii() and value.isdigit() and int(value[:13]) <= most):
                raise HttpError(413, "too-large", f"a body has at most {most} bytes")
        deadline = asyncio.get_running_loop().time() + self.limits.slow
        read, done = 0, False

        async def bounded() -> Message:
            nonlocal read, done
            if done:
                return await receive()
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                raise HttpError(408, "slow", "the body took too long") from None
            read += len(message.get("body", b""))
            done = not message.get("more_body", False)
            if read > most:
                raise HttpError(413, "too-large", f"a body has at most {most} bytes")
            return message

        return bounded


class _Out:
    """`send`, with our headers, and a limit on the time that a caller takes for each piece."""

    def __init__(self, send: Send, slow: float) -> None:
        self._send, self._slow, self.begun = send, slow, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            there = {name.lower() for name, _ in message.get("headers", ())}
            own = [pair for pair in HEADERS if pair[0] not in there]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await asyncio.wait_for(self._send(message), self._slow)


def error_place(error: BaseException) -> str:
    """An error's class and the place in our code that it came from, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    at = f" at {Path(last.filename).name}:{last.lineno}" if last else ""
    return f"{type(error).__name__}{at}"


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()


# --- Parsing of asks
#
# The one place where a body from outside becomes typed values.


Id = Annotated[str, Field(min_length=1, max_length=200)]
Type = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
Place = Annotated[int, Field(ge=0)]
Language = Annotated[str | None, Field(pattern=r"^[a-z]{2}$")]
"""The language that the caller's texts are in; None: as the model learnt, or as they tell."""


Label = Annotated[str, Field(min_length=1, max_length=200)]
Types = Annotated[list[Label] | None, Field(min_length=1, max_length=1000)]
"""The labels among which the model decides; None: all, or what its site wants."""


class Body(BaseModel):
    """A body of JSON: unknown keys and loose types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    async def read(cls, ask: Request) -> Self:
        """The body of an ask, checked. Raises HttpError, with none of the caller's words."""
        if _content_type(ask) != "application/json":
            raise HttpError(415, "not-json", "the body is JSON, and says so: application/json")
        raw = await ask.body()
        try:
            tree = decode_json(raw.decode("utf-8"), parse_constant=_no_constant)
        except ValueError:
            raise HttpError(400, "not-json", "the body is not JSON") from None
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            # A place has numbers and our own names, and no key of the caller's
            ours = {*cls.model_fields, *GivenText.model_fields}
            place = ".".join(str(one) for one in first["loc"] if one in ours or type(one) is int)
            wanted = own_words(first) or expected(first, table="an object")
            what = "the body is not what was asked for: expected " + wanted
            raise HttpError(422, "wrong-body", what + (f" at {place}" if place else "")) from None


class GivenEntity(Body):
    """An entity that the caller marked in its text."""

    type: Type
    start: Place
    end: Place
    id: Id | None = None


class GivenText(Body):
    """A text, with an id that comes back in the answer, and marked entities if there are any."""

    text: str
    id: Id | None = None
    entities: Annotated[list[GivenEntity], Field(max_length=10_000)] = []


def _content_type(ask: Request) -> str:
    return ask.headers.get("content-type", "").partition(";")[0].strip().lower()


def _no_constant(name: str) -> None:
    raise ValueError(name)


def given_documents(
    texts: Sequence[str | GivenText], language: str | None, limits: CallerLimits
) -> list[Document]:
    """A caller's texts as documents, cut into sentences by the rules of a language if it is stated.

    A text without an id gets its number. Raises HttpError: texts that are too many or too long,
    marks outside a text, a language that there is not.
    """
    if len(texts) > limits.texts:
        raise HttpError(413, "too-many", f"at most {limits.texts} texts go into one ask")
    documents = []
    for number, one in enumerate(texts, 1):
        given = GivenText(text=one) if isinstance(one, str) else one
        text = given.text
        if len(text) > limits.characters:
            raise HttpError(413, "too-long", f"a text has at most {limits.characters} characters")
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise HttpError(422, "not-text", "a text has half of a surrogate pair")
        marked = [
            Entity(mark.id or f"T{n}", mark.type, ((mark.start, mark.end),))
            for n, mark in enumerate(given.entities, 1)
        ]
        if any(not mark.start < mark.end <= len(text) for mark in marked):
            raise HttpError(422, "outside", "an entity is empty, or ends after its text")
        if len({mark.id for mark in marked}) < len(marked):
            raise HttpError(422, "same-id", "two entities have the same id")
        documents.append(Document(given.id or str(number), text, tuple(marked)))
    if language is None:
        return documents
    if language not in CODES:
        raise HttpError(422, "language", "a language is two letters of ISO 639-1, such as es or fr")
    return into_sentences(documents, Splitting(language))


async def read_form(ask: Request) -> Mapping[str, str]:
    """The fields of a posted form, the last of each name. Raises HttpError."""
    if _content_type(ask) != "application/x-www-form-urlencoded":
        raise HttpError(415, "not-a-form", "the body is a form")
    try:
        words = (await ask.body()).decode("utf-8")
        fields = parse_qs(words, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise HttpError(400, "not-a-form", "the body is not a form") from None
    return {name: values[-1] for name, values in fields.items()}


# --- Pages from templates, and the door's own page


NAMES = {"read": "Read", "correct": "Correct", "watch": "Watch", "consent": "Agree", "api": "REST"}


def fill(template: str, **values: object) -> str:
    """Fill in a template; every value is escaped."""
    return templates("confide.serve").get_template(f"{template}.j2").render(**values)


class Pages:
    """Renders templates with the navigation between the pages that are served."""

    def __init__(self, served: Collection[str]) -> None:
        self._menu = [(f"/{name}", title) for name, title in NAMES.items() if name in served]

    def page(self, name: str, *, status: int = 200, title: str, **values: object) -> HTMLResponse:
        """A whole page from the template of that name."""
        page = fill(f"{name}.html", title=title, here=name, menu=self._menu, **values)
        return HTMLResponse(page, status)


def enter_routes(pages: Pages, doors: Doors, *, lasts: float, secure: bool) -> list[Route]:
    """The page that asks for the token, and exchanges it for a cookie."""

    async def enter(ask: Request) -> Response:
        if ask.method != "POST":
            return pages.page("enter", title="Enter", wrong=False)
        if not doors.is_token((await read_form(ask)).get("token", "").strip()):
            return pages.page("enter", status=401, title="Enter", wrong=True)
        answer = RedirectResponse("/", 303)
        value, age = doors.new_session(), round(lasts)
        answer.set_cookie(
            COOKIE, value, max_age=age, httponly=True, samesite="strict", secure=secure
        )
        return answer

    return [Route(ENTER, enter, methods=["GET", "POST"])] if doors.locked else []
