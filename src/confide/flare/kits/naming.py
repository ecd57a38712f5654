"""Which names a consortium, its sites, its lead, its server and its runs may have."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from confide.errors import EngineError, GuardError, KitError
from confide.federation.files import plain_name

SERVER = "server"
RESERVED = (SERVER, "client", "all", "admin")
"""Names with another meaning in NVIDIA FLARE."""

_TRUTHS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"({_LABEL}\.)*{_LABEL}")


def check_names(consortium: str, sites: Sequence[str], *, lead: str, host: str) -> None:
    """Raise KitError if a name is not allowed or is used twice, whatever its case.

    Unlike in a settings file, a site's name has no dot: FLARE makes addresses from names and dots.
    """
    if not sites:
        raise KitError("a consortium needs at least one site", fix="name one with --site")
    for what, name in (("consortium", consortium), ("lead", lead), *(("site", s) for s in sites)):
        _check_form(what, name)
    taken = {name: f"{name!r} means something else here" for name in RESERVED}
    taken[host.lower()] = f"{host!r} is the server's host"
    for what, name in (("lead", lead), *(("site", s) for s in sites)):
        if name.lower() in taken:
            raise KitError(
                f"the {what} cannot have this name: {taken[name.lower()]}",
                got=repr(name),
                fix="choose another name",
            )
        taken[name.lower()] = f"another {what if what == 'site' else 'site'} has that name"
        if what == "lead":
            taken[name.lower()] = "the lead has that name"


def check_site(name: str, *, host: str) -> None:
    """Raise KitError if no site of a server at `host` can have that name."""
    _check_form("site", name)
    if name.lower() in (*RESERVED, host.lower()):
        raise KitError("no site can have this name", got=repr(name), fix="check the spelling")


def check_peer(name: str) -> None:
    """Raise KitError if no peer (the server, a site or a lead) can have that name."""
    if name != SERVER:
        _check_form("peer", name)


def _check_form(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise KitError(
            f"a {what} cannot have this name",
            expected="a letter or digit, then up to 47 letters, digits, '-' or '_'",
            got=repr(name),
        )
    if what == "site" and _is_no_text(name):
        raise KitError(
            "FLARE would read this name as a number, or as yes or no",
            got=repr(name),
            fix=f"choose another name, such as {'site-' + name!r}",
        )


def _is_no_text(value: str) -> bool:
    """Whether FLARE, which gets names on a command line, would read this as something else."""
    try:
        float(value)
    except ValueError:
        return value.lower() in _TRUTHS
    return True


def check_host(host: str) -> None:
    """Raise KitError if sites could not reach a server of that name, or FLARE would not take it."""
    if _is_ipv6(host.strip("[]")):
        raise KitError("FLARE cannot listen on an IPv6 address", got=host, fix="give a host name")
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise KitError(
            "this is not the name of a host",
            expected="a name such as fl.example.org, or an IPv4 address; no port and no scheme",
            got=repr(host),
        )


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def organisation(consortium: str) -> str:
    """The consortium's name as it stands in certificates: the organisation of all participants."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", consortium)
    return f"{name}_" if _is_no_text(name) else name


MOST_SITES = 1000
LONGEST_CARD = 20_000
LONGEST_SETTINGS = 200_000
"""Characters of a run's settings as TOML; the longest recipe has about 2,000."""


def check_order(
    run: object, settings: object, *, sites: object, version: object, lead: object
) -> None:
    """Raise EngineError if what a lead submitted, of whatever types, cannot be a run."""
    try:
        plain_name(run, "a run")
        plain_name(version, "a version")
        if not isinstance(sites, list) or not 0 < len(sites) <= MOST_SITES:
            raise GuardError("sites is not a list of names", expected=f"1 to {MOST_SITES} names")
        for site in sites:
            plain_name(site, "a site")
        if len(set(sites)) < len(sites):
            raise GuardError("a site is named twice")
        if not isinstance(settings, str) or len(settings) > LONGEST_SETTINGS:
            raise GuardError(
                "settings is not a text", expected=f"at most {LONGEST_SETTINGS} characters"
            )
        if not isinstance(lead, str) or len(lead) > LONGEST_CARD:
            raise GuardError("the lead's card and signature are not a text")
    except GuardError as error:
        raise EngineError(
            f"the server does not take this submission: {error}",
            fix="submit runs with `confide coordinate` of the server's version",
        ) from error
