"""Founding a consortium, making kits under its authority, and revoking sites."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from confide.errors import KitError, os_errors_as
from confide.files import Tree, bytes_of, json_of, write_atomically
from confide.flare.kit import (
    DAYS,
    DESCRIPTION,
    KITS,
    PORT,
    PROJECT,
    SCHEMA,
    SERVER,
    Consortium,
    Kind,
    Kit,
    check_host,
    check_names,
    check_site,
    no_engine,
    open_consortium,
    open_kit,
    write_policies,
    write_private,
)
from confide.version import __version__

if TYPE_CHECKING:
    from nvflare.private.fed.server.server_engine import ServerEngine


try:
    from confide.flare.nvidia import authority
except ImportError as error:
    raise no_engine() from error

_NOT_OURS = ("*.sh", "*.ipynb", "readme*", "*.md")
"""FLARE's scripts and their descriptions, which would start its processes without our part."""


def create_consortium(
    name: str,
    *,
    sites: Sequence[str],
    host: str,
    port: int = PORT,
    lead: str = "lead",
    out: Path | None = None,
    days: float = DAYS,
    passphrase: bytes | None = None,
) -> Consortium:
    """Found a consortium in the folder `out` (by default its name): the project file and all kits.

    Sites and the lead reach the server at `host`, on this one port. A passphrase encrypts the root
    key. Raises KitError if a name, the host or the port is not allowed or the folder exists;
    EngineError without FLARE.
    """
    out = Path(name) if out is None else out
    made = Consortium(out, name, host, port, lead, tuple(sites), days)
    _check(made)
    if out.exists():
        raise KitError(
            "this path already exists, and a consortium is never overwritten",
            where=str(out),
            fix="choose another folder; to add a site, use `confide consortium add`",
        )
    beside = out.with_name(f".{out.name}.new")
    try:
        with os_errors_as(KitError, "the consortium's folder could not be written", where=out):
            beside.mkdir(parents=True, mode=0o700)
            new = dataclasses.replace(made, path=beside)
            authority.found(new.authority, name, days=days, passphrase=passphrase)
            names = (SERVER, *made.sites, made.lead)
            _provision(new, beside / KITS, names=names, passphrase=passphrase)
            _write_project(new)
            beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_consortium(out)


def add_site(consortium: Path, site: str) -> Kit:
    """Make the kit of a further site. All other kits stay as they are. Raises KitError."""
    held = open_consortium(consortium)
    grown = dataclasses.replace(held, sites=(*held.sites, site))
    _check(grown)
    kit = _make(grown, site)
    _write_project(grown)
    return kit


def renew_kit(consortium: Path, name: str) -> Kit:
    """Make a new kit for `server`, a site or the lead, with a new key and certificate.

    The old kit works until its own certificate expires; it is not overwritten. Raises KitError.
    """
    held = open_consortium(consortium)
    known = (SERVER, *held.sites, held.lead)
    if name not in known:
        raise KitError(
            "this consortium has no participant of that name",
            expected=", ".join(known),
            got=name,
            where=str(held.path),
        )
    return _make(held, name)


def _make(made: Consortium, name: str) -> Kit:
    """One more kit under the authority of an existing consortium."""
    path = made.path / KITS / name
    if path.exists():
        raise KitError(
            "there is already a kit of that name",
            where=str(path),
            fix="if its owner has it, delete this copy; if it is used from here, move it away",
        )
    beside = made.path / f".{name}.new"
    try:
        with os_errors_as(KitError, "the kit could not be written", where=path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _provision(made, beside, names=(name,))
            (beside / name).rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return open_kit(path)


def _provision(
    made: Consortium, out: Path, *, names: Sequence[str], passphrase: bytes | None = None
) -> None:
    """Provision the kits of these names (`server`, sites, the lead) into `out`.

    FLARE cannot provision without a server; if the server's kit is not wanted, it is deleted.
    """
    user = f"{made.lead}@confide.lead"
    sites = [name for name in names if name in made.sites]
    people = authority.participants(made, sites=sites, user=user if made.lead in names else "")
    folders = authority.provision(
        made.authority, out, name=made.name, participants=people, passphrase=passphrase
    )
    identity: str = people[0].name  # FLARE cuts long host names
    owners: dict[str, tuple[Kind, str]] = {site: ("site", site) for site in sites}
    owners |= {identity: ("server", SERVER), user: ("lead", made.lead)}
    for own, folder in folders.items():
        kind, name = owners[own]
        if name not in names:
            shutil.rmtree(folder)
            continue
        folder.rename(out / name)
        kit = Kit(out / name, kind, name, made.name, made.host, made.port, identity)
        _finish(dataclasses.replace(kit, user=user) if kind == "lead" else kit)


def _finish(kit: Kit) -> None:
    """Add our policies, remove FLARE's scripts and samples, and close all to others."""
    for folder in (kit.path, kit.path / "startup"):
        for pattern in _NOT_OURS:
            for path in folder.glob(pattern):
                path.unlink()
    for sample in (kit.path / "local").iterdir():
        sample.unlink()
    write_policies(kit.path, kit.kind)
    described = {"schema": SCHEMA, "confide": __version__} | _fields(kit)
    write_private(kit.path / "local" / DESCRIPTION, json.dumps(described, indent=2) + "\n")
    write_private(kit.path / "README.txt", _readme(kit))
    for path in (kit.path, *kit.path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def _readme(kit: Kit) -> str:
    verb = f"confide {kit.kind} start KIT"
    if kit.kind == "lead":
        verb = "confide coordinate SETTINGS.toml --kit KIT"
    return (
        f"The startup kit of {kit.name} ({kit.kind}) in the consortium {kit.consortium}.\n"
        f"The server is at {kit.host}, port {kit.port}.\n"
        "It holds a private key: keep it where only its owner can read it.\n\n"
        f"    {verb}\n"
    )


def _write_project(made: Consortium) -> None:
    text = "# A consortium of confide. The folder `authority` beside this file is secret.\n"
    project = {"schema": SCHEMA} | _fields(made) | {"sites": list(made.sites)}
    beside = made.path / (PROJECT + ".tmp")
    write_private(beside, text + tomli_w.dumps(project))
    beside.replace(made.path / PROJECT)


def _fields(thing: Kit | Consortium) -> Tree:
    """All fields but the path."""
    fields = dataclasses.asdict(thing)
    del fields["path"]
    return fields


def _check(made: Consortium) -> None:
    check_names(made.name, made.sites, lead=made.lead, host=made.host)
    check_host(made.host)
    if not 0 < made.port < 65536:
        raise KitError("this is not a port", expected="1 to 65535", got=str(made.port))
    if not made.days > 0:
        raise KitError(
            "a certificate must be valid for some time",
            expected="a number of days above 0",
            got=f"{made.days:g}",
        )


# --- Revoked sites
#
# The server no longer lets them in, whatever certificate they show.
#
# A certificate cannot be called back, so the server keeps a list of names: the one that NVIDIA
# FLARE reads from a server's kit when it starts. Here a running server follows that file too: a
# site on the list is out at its next heartbeat, and the runs it takes part in are ended.


LIST = Path("disabled_clients.json")
"""The list in the server's kit; its name and form are FLARE's."""
_KEY = "disabled_clients"


def revoked(kit: Kit) -> tuple[str, ...]:
    """The sites that this server no longer lets in, sorted. Raises KitError: a damaged list."""
    path = kit.path / LIST
    try:
        return tuple(sorted(_read(path)))
    except (OSError, ValueError) as error:
        raise KitError(
            "the list of revoked sites cannot be read, so the server does not start",
            where=str(path),
            fix="restore it from your backup, or delete it and revoke the sites again",
        ) from error


def revoke_site(kit: Kit, site: str) -> bool:
    """Revoke a site, even with a renewed kit. False if it was revoked already.

    A server's kit does not know who takes part, so only the form of the name is checked. Raises
    KitError.
    """
    check_site(site, host=kit.host)
    before = revoked(kit)
    if site in before:
        return False
    _write(kit, {*before, site})
    return True


def admit_site(kit: Kit, site: str) -> None:
    """Let a revoked site in again. Raises KitError if it was not revoked."""
    before = revoked(kit)
    if site not in before:
        raise KitError(
            "this site is not revoked",
            expected=f"one of: {', '.join(before)}" if before else "none: no site is revoked",
            got=repr(site),
            where=str(kit.path),
        )
    _write(kit, set(before) - {site})


class Door:
    """Makes a running server follow its list, which lies at `path`.

    If the list cannot be read, nothing changes: sites that were out stay out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None

    def look(self, engine: ServerEngine) -> bool:
        """Follow the list if it changed; whether it did. `engine` is FLARE's."""
        with self._lock:
            try:
                stamp = self._stamp()
                if stamp == self._seen:
                    return False
                names = _read(self._path)
            except (OSError, ValueError):
                return False
            self._seen = stamp
            manager = engine.client_manager
            manager.set_disabled_clients_file(None)  # only our commands write the list
            out = set(manager.disabled_clients)
            engine.enable_clients(sorted(out - names))
            for site in sorted(names - out):
                runs = _runs_of(engine, site)
                engine.disable_clients([site])
                threading.Thread(target=_end_runs, args=(engine, runs), daemon=True).start()
            return True

    def _stamp(self) -> tuple[int, int]:
        """A value that changes whenever the list is written; a missing list is an empty one."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino


def _runs_of(engine: ServerEngine, site: str) -> list[str]:
    """The runs under way in which the site takes part, by FLARE's ids."""
    from nvflare.apis.fl_constant import RunProcessKey

    found = []
    for run, process in list(engine.run_processes.items()):
        taking_part = (process.get(RunProcessKey.PARTICIPANTS) or {}).values()
        if any(one.name == site for one in taking_part):
            found.append(run)
    return found


def _end_runs(engine: ServerEngine, runs: list[str]) -> None:
    for run in runs:
        with engine.new_context() as context:
            engine.job_runner.stop_run(run, context)


def _read(path: Path) -> set[str]:
    """The names in a list; none if there is no file. Raises OSError, ValueError."""
    try:
        held = json_of(bytes_of(path))
    except FileNotFoundError:
        return set()
    names = held.get(_KEY) if isinstance(held, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected a list {_KEY!r}")
    return set(names)


def _write(kit: Kit, names: set[str]) -> None:
    path = kit.path / LIST
    with os_errors_as(KitError, "the list of revoked sites could not be written", where=path):
        write_atomically(path, (json.dumps({_KEY: sorted(names)}, indent=2) + "\n").encode())
        path.chmod(0o600)
