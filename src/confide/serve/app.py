"""The application: all routes behind the gate, and the process that listens."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from confide.errors import SettingsError, os_errors_as, printable
from confide.files import file_text, for_the_owner
from confide.runs.loading import release_task
from confide.serve import gate
from confide.serve.annotating import tool_routes
from confide.serve.correcting import Corrections, Pool, Workplace, correct_routes
from confide.serve.gate import USUAL, CallerLimits, Gate
from confide.serve.models import Served, read_routes, rest_routes, serve_models
from confide.serve.watching import Runs, RunWatch, watch_routes
from confide.text.document import Document
from confide.text.formats import read

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True)
class ServedPages:
    """The parts of the server's pages; None leaves a page out.

    `corrections` is the folder that corrections go to, and `texts` are to be corrected; `watched`
    is the folder whose runs are watched; `kit` is that of a real site, and `asked` the settings
    that a lead asks it to run with.
    """

    models: Mapping[str, Served]
    limits: CallerLimits = USUAL
    corrections: Path | None = None
    texts: Sequence[Document] = ()
    watched: Path | None = None
    kit: Path | None = None
    asked: str | None = None


def application(
    shown: ServedPages,
    *,
    hosts: frozenset[str],
    token: str | None = None,
    tell: Callable[[str], None],
    secure: bool = False,
) -> Gate:
    """The ASGI application.

    Args:
        shown: what is served.
        hosts: the values of Host that are served.
        token: the token to ask for; None: everyone who reaches the address may enter.
        tell: called with one line about an error of our own.
        secure: whether browsers reach the address over https.
    """
    limits = shown.limits
    doors = gate.Doors(token, lasts=limits.session)
    served: dict[str, object] = {
        "read": shown.models,
        "correct": shown.corrections,
        "watch": shown.watched,
        "consent": shown.kit,
        "api": shown.models,
    }
    pages = gate.Pages([name for name, there in served.items() if there])
    routes: list[BaseRoute] = []
    if shown.models:
        routes += read_routes(shown.models, limits, pages)
    if shown.corrections is not None:
        place = Workplace(shown.models, Pool(limits.pool), Corrections(shown.corrections), limits)
        place.add_now(shown.texts)
        routes += correct_routes(place, pages)
    if shown.watched is not None:
        routes += watch_routes(RunWatch(Runs(shown.watched), limits), pages)
    if shown.kit is not None:
        from confide.serve import consenting  # real sites, which nobody else waits for

        page = consenting.ConsentPage(shown.kit, shown.asked)
        routes += consenting.consent_routes(page, pages)
    first = next((f"/{name}" for name, there in served.items() if there), "/healthz")

    async def home(ask: Request) -> Response:
        return RedirectResponse(first, 303)

    routes += [
        Route("/", home),
        *gate.enter_routes(pages, doors, lasts=limits.session, secure=secure),
        *rest_routes(shown.models, limits, pages, doors=doors),
        *tool_routes(shown.models, limits),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Gate(Router(routes), hosts=hosts, doors=doors, limits=limits, tell=tell, secure=secure)


# --- Listening
#
# The address, the token, and the server process itself.


FREE = Path("none")
"""Instead of a token's file: everyone on this machine may enter."""
SHORTEST = 32
"""Characters of a token; one that we make has 43."""


class Patient(H11Protocol):
    """uvicorn's HTTP/1.1, which also closes a connection that never finishes its headers."""

    most_seconds = 10.0
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for headers, but not for ever."""
        super().connection_made(transport)
        self._due = self.loop.call_later(self.most_seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take bytes in; a new ask ends the wait for its headers."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._wait_no_more()
        elif self._due is None and before.response_complete:
            self._due = self.loop.call_later(self.most_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait_no_more(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


@dataclass(frozen=True)
class Address:
    """Where to listen, and who may enter.

    `names` are further names under which browsers reach us; `secure`: over https, by a proxy. Who
    may enter has the token in `token_file`, or one that is made at every start; if the file is
    `FREE`, it is everyone on this machine.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token_file: Path | None = None
    names: tuple[str, ...] = ()
    secure: bool = False

    @staticmethod
    def of(at: str, token_file: Path | None = None) -> Address:
        """The address in "host:port" or "https://name=host:port". Raises SettingsError.

        The second form is for a proxy that speaks https to browsers, under that name.
        """
        name, _, rest = at.rpartition("=")
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise SettingsError("this is no address", expected="HOST:PORT", got=printable(at))
        if not name:
            return Address(host, int(port), token_file)
        if not name.startswith("https://"):
            raise SettingsError(
                "a proxy must speak https", expected="https://NAME=HOST:PORT", got=printable(at)
            )
        return Address(host, int(port), token_file, (name.removeprefix("https://"),), True)


def token_for(at: Address) -> str | None:
    """The token that an address asks for; None if everyone on this machine may enter.

    It comes from the address's file, or is a new one. Raises SettingsError: others reach the
    address and there is no file; and as `token_of` does.
    """
    if at.token_file not in (None, FREE):
        return token_of(at.token_file)
    if not is_here(at.host) or at.names:
        raise SettingsError(
            "this address can be reached from other machines",
            where=at.host,
            fix="give --token-file FILE, and only those who have the token may enter",
        )
    return secrets.token_urlsafe(32) if at.token_file is None else None


def token_of(file: Path) -> str:
    """The token in a file, made with it if there is none yet.

    Raises SettingsError if the file cannot be read or written, if others can read or change it, or
    if the token is short.
    """
    with os_errors_as(SettingsError, "the token's file cannot be used", where=file):
        if not file.exists():
            with for_the_owner():
                file.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
        try:
            token = file_text(file, 4096, encoding="ascii").strip()
        except UnicodeDecodeError:
            token = ""
        mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise SettingsError(
            "others can read the token's file, or change it",
            where=str(file),
            expected="mode 0600",
            got=f"mode {mode:04o}",
            fix="delete the file, and another token is written there; or, if nobody can have read"
            " it, chmod 600 it",
        )
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise SettingsError(
            "the token is too short, or not one word of ASCII",
            where=str(file),
            expected=f"at least {SHORTEST} characters",
            fix="delete the file, and a good token is written there",
        )
    return token


def is_here(host: str) -> bool:
    """Return whether nobody beyond this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(host: str, port: int, names: Sequence[str]) -> frozenset[str]:
    """The values of Host to answer: the address, its usual names, and further `names`."""
    found = {host, *names}
    if is_here(host):
        found |= {"localhost", "127.0.0.1"}
    bare = {f"[{one}]" if ":" in one else one.lower() for one in found}
    # Behind a reverse proxy the port is the proxy's: a further name may have one of its own.
    whole = {one.lower() for one in names}
    return frozenset({f"{one}:{port}" for one in bare} | whole | (bare if port == 80 else set()))


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with os_errors_as(
        SettingsError,
        "nothing can listen at this address",
        where=f"{host}:{port}",
        fix="choose another --port, or --port 0 for any that is free",
    ):
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)


def listen(shown: ServedPages, at: Address, *, say: Callable[[str], None]) -> None:
    """Serve until stopped.

    Raises SettingsError: an address beyond this machine without a token, or one that is taken.
    """
    host, token = at.host, token_for(at)
    taken = listening(host, at.port)
    port = taken.getsockname()[1]
    app = application(
        shown, hosts=hosts_of(host, port, at.names), token=token, tell=say, secure=at.secure
    )
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    say(f"serving at {where}" + (f"enter#{token}" if token else ""))
    if token and at.token_file is None:
        say("programs send what follows the # as a bearer token; the next start makes another")
    _server(app, shown.limits).run(sockets=[taken])


def _server(app: Any, limits: CallerLimits) -> uvicorn.Server:
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).disabled = True  # a traceback of theirs could hold text
    config = uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32 * 1024,
    )
    return uvicorn.Server(config)


def run_server(
    runs: Sequence[str],
    at: Address,
    *,
    pages: ServedPages,
    key: Path | None = None,
    int8: bool = False,
    texts: Sequence[Path] = (),
    say: Callable[[str], None],
) -> None:
    """Load the models, add them and the documents in `texts` to `pages`, and serve until stopped.

    A folder among the runs that is none, but may hold some, is watched. Raises as `confide.load`,
    `api.read` and `listen` do; SettingsError or KitError if there is nothing to serve, or if
    whoever reaches the address could agree for a site.
    """
    folders = [run for run in runs if _holds_runs(Path(run).expanduser())]
    if len(folders) > 1:
        raise SettingsError("one folder of runs is watched", got=" and ".join(folders))
    if not (runs or pages.kit or texts):
        raise SettingsError(
            "there is nothing to serve",
            expected="a run, a folder of runs to watch, --kit DIR or --text FILE",
        )
    if pages.kit is not None and at.token_file == FREE:
        raise SettingsError(
            "whoever reaches this address could agree for the site",
            fix="leave out --token-file none: only who has the printed address may enter",
        )
    if pages.kit is None and pages.asked is not None:
        raise SettingsError("--for is for the page of a site", fix="add --kit DIR")
    if pages.kit is not None:
        from confide.serve import consenting  # real sites, which nobody else waits for

        consenting.ConsentPage(pages.kit, pages.asked).methods()  # or the page could show nothing
    if texts and pages.corrections is None:
        raise SettingsError("nobody said where corrections go", fix="add --corrections DIR")
    named = [run for run in runs if run not in folders]
    models = serve_models(named, key=key, int8=int8, limits=pages.limits)
    documents = [one for path in texts for one in read(path).documents]
    watched = Path(folders[0]).expanduser() if folders else None
    listen(replace(pages, models=models, texts=documents, watched=watched), at, say=say)


def _holds_runs(path: Path) -> bool:
    """Return whether this folder is no run and no release, so that it may hold runs."""
    return path.is_dir() and not (path / "settings.toml").exists() and release_task(path) is None
