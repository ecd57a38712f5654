"""A site behind an HTTP proxy: the proxy connects it to the server, and TLS runs inside.

The proxy hears the server's name and port and, if it asks for them, the site's user and password.
It resolves the server's name; a site that has a proxy never connects without it. TLS, with
certificates on both sides, is between site and server (RFC 9110, section 9.3.6).

NVIDIA FLARE makes the connections of runs (`nvidia.connecting`); those here are of `site status`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import quote

from confide.errors import EngineError, SettingsError, printable
from confide.federation.keys import secret_in
from confide.settings.sitefile import Proxy, parse_proxy

ADDRESS, PASSWORD_FILE = "CONFIDE_PROXY", "CONFIDE_PROXY_PASSWORD_FILE"
"""The environment variables that tell a kit's processes, and a lead, of the proxy."""
WITHIN = 15.0
"""Seconds in which a proxy has to answer: it may wait for the server itself."""
_MOST = 1 << 14
"""The most bytes of a proxy's answer."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\r\n]*))?\r?\n")
_OFFER = re.compile(rb"(?im)^proxy-authenticate:[ \t]*([A-Za-z][A-Za-z0-9-]{0,30})")


def in_environment(proxy: Proxy) -> dict[str, str]:
    """The variables of processes that have this proxy. The password is not among them."""
    user, file = quote(proxy.user, safe=""), proxy.password_file
    address = f"http://{user}@{proxy.at}" if user else f"http://{proxy.at}"
    return {ADDRESS: address} | ({PASSWORD_FILE: str(file)} if file else {})


def of_environment() -> Proxy | None:
    """The proxy of this process; None if it has none. Raises SettingsError."""
    address = os.environ.get(ADDRESS)
    if not address:
        return None
    try:
        return parse_proxy(address, os.environ.get(PASSWORD_FILE))
    except SettingsError as error:
        raise error.at(ADDRESS) from None


def credentials(proxy: Proxy) -> dict[str, str]:
    """The header with user and password, if there is a user. Raises LockedKeyError.

    The password is read each time, so a new one counts at the next connection.
    """
    if not proxy.user:
        return {}
    password, file = b"", proxy.password_file
    if file is not None:
        password = secret_in(file, "password", where=f"proxy_password_file = {file}")
    said = b64encode(proxy.user.encode() + b":" + password).decode()
    return {"Proxy-Authorization": f"Basic {said}"}


def tunnel(proxy: Proxy, host: str, port: int) -> socket.socket:
    """A connection to a port of `host` through the proxy.

    Raises EngineError, which says what the proxy did; LockedKeyError.
    """
    own = "".join(f"{name}: {value}\r\n" for name, value in credentials(proxy).items())
    target, end = f"{host}:{port}", time.monotonic() + WITHIN
    try:
        raw = socket.create_connection((proxy.host, proxy.port), timeout=WITHIN)
    except socket.gaierror:
        raise EngineError(f"this machine cannot resolve the proxy's name, {proxy.host}") from None
    except OSError as error:
        why = error.strerror or "no answer in time"
        raise EngineError(f"no proxy answers at {proxy.at} ({why})") from None
    with contextlib.ExitStack() as unless_open:
        unless_open.callback(raw.close)
        try:
            raw.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{own}\r\n".encode())
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < _MOST:
                raw.settimeout(max(end - time.monotonic(), 0.001))
                part = raw.recv(_MOST - len(answer))
                if not part:
                    raise ConnectionResetError(0, "it closed the connection")
                answer += part
        except TimeoutError:
            raise EngineError(
                f"the proxy at {proxy.at} does not answer within {WITHIN:g} s",
                fix=_asking(f"see whether the proxy reaches {target}"),
            ) from None
        except OSError as error:
            raise EngineError(
                f"the proxy at {proxy.at} gives no answer ({error.strerror})",
                fix=_asking(f"allow CONNECT to {target}"),
            ) from None
        head, blank, more = answer.partition(b"\r\n\r\n")
        status = _STATUS.match(head + b"\r\n")
        if status is None or not blank or (status[1] == b"200" and more):  # no TLS server begins
            raise EngineError(
                f"what answers at {proxy.at} is not an HTTP proxy",
                fix=_asking("say which proxy opens connections by CONNECT"),
            )
        if status[1] != b"200":
            offers = [name.decode() for name in _OFFER.findall(head)]
            reason = (status[2] or b"").decode("latin-1")
            raise refusal(proxy, target, int(status[1]), reason=reason, offers=offers)
        unless_open.pop_all()
    return raw


def refusal(
    proxy: Proxy, target: str, status: int, *, reason: str, offers: Iterable[str]
) -> EngineError:
    """The error for a proxy that answers with this status, and what to do.

    `offers` are the ways to prove who one is that the proxy knows.
    """
    said = f"{status} {printable(reason, 60)}".strip()
    if status == 407:
        ways = sorted({printable(way, 30) for way in offers})
        if ways and "basic" not in map(str.lower, ways):
            return EngineError(
                f"the proxy at {proxy.at} asks for {' or '.join(ways)[:100]}, and confide knows"
                " only Basic",
                fix=_asking(f"let this machine through to {target} without a password")
                + ", or run a helper here that speaks to the proxy, and name that as proxy",
            )
        if not proxy.user:
            return EngineError(
                f"the proxy at {proxy.at} asks for a user and a password",
                fix="write proxy = http://user@host:port, and name the file with the password"
                " with proxy_password_file",
            )
        return EngineError(
            f"the proxy at {proxy.at} does not take this user and password",
            fix="correct the user in proxy, or the file that proxy_password_file names",
        )
    if status in (502, 503, 504):
        return EngineError(
            f"the proxy at {proxy.at} does not reach the server at {target} ({said})",
            fix="see that the server runs, and " + _asking(f"let the proxy reach {target}"),
        )
    return EngineError(
        f"the proxy at {proxy.at} refuses a connection to {target} ({said})",
        fix=_asking(f"allow CONNECT to {target}"),
    )


def _asking(what: str) -> str:
    return f"ask the network team to {what}"
