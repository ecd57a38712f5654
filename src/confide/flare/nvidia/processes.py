"""The processes of a kit, and at a server the sites that it lets in and the runs that it holds.

A kit has a resident process, which holds the kit's lock, and one more for each run under way. All
carry the kit's path in their environment; nothing else is ever killed. Who keeps the resident
process alive is a service manager's business.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from confide import files
from confide.errors import ConfideError, GuardError, KitError, os_errors_as, printable
from confide.federation.keys import VARIABLE as PASSPHRASE
from confide.federation.keys import unlock
from confide.flare import kit as kits
from confide.flare.kit import HEARTBEAT_TIMEOUT, SERVER, STORE, Kit
from confide.flare.peers import open_signer
from confide.flare.proxies import ADDRESS, PASSWORD_FILE, credentials, in_environment
from confide.settings import SiteFile, load_site
from confide.settings.sitefile import LauncherTable, Proxy

try:
    import psutil
except ImportError as error:
    raise kits.no_engine() from error

MARK = "CONFIDE_KIT"
"""The environment variable that marks a kit's processes."""
SERVICE = "confide.flare.nvidia.service"
LOCK, STATE = (Path("run") / name for name in ("lock", "state.json"))
"""In the kit: the lock, and how the resident process is doing (see `watch`)."""
RUN = (
    "nvflare.private.fed.app.client.worker_process",
    "nvflare.private.fed.app.server.runner_process",
)
NOT_PASSED = (
    "FL_LOG_LEVEL", "NVFL_RESULT_ROOT", "NVFL_LOG_ROOT", "NVFL_AUDIT_ROOT", ADDRESS, PASSWORD_FILE,
)  # fmt: skip
"""Environment variables that would make FLARE write elsewhere, or write more than it should; and
those of a proxy, which a site's own file says."""
LINK = {
    "NVFLARE_STREAMING_CHUNK_SIZE": str(2**18),
    "NVFLARE_STREAMING_WINDOW_SIZE": str(2**20),
    "NVFLARE_STREAMING_ACK_INTERVAL": str(2**18),
    "NVFLARE_STREAMING_RETRY_WAIT": "20",
    "NVFLARE_STREAMING_RETRY_TIMEOUT": "300",
}
"""FLARE's settings for a long message: in parts of 256 KiB, with at most 1 MiB under way, resent
after 20 s. Its defaults are for 25 Gbit/s: 64 MB at once, all resent every 5 s. On a link of a few
Mbit/s the copies would jam the link and hold up the heartbeats."""
MODELS = "models"
"""The folder in a kit with models, by the names that a run's settings give them."""
IN_SLURM = Path(".nvflare_slurm", "jobs")
"""In the kit: a folder for each run that the site has in Slurm, by FLARE's name for it."""
KILLED_WITHIN = 10.0
TURNED_AWAY = (
    "the server answers but does not let this site in; ask whoever runs it whether the site was "
    "revoked (`confide server status` there lists revoked sites)"
)


@dataclass(frozen=True)
class Status:
    """The state of a kit's processes.

    Attributes:
        kind: server or site.
        name: the kit's name.
        running: whether the resident process is there.
        pid: its process id.
        since: when it was started, in UTC.
        memory: the resident bytes of all processes.
        runs: how many runs are under way.
        connected: at a site, whether the server takes its heartbeats; at the server, whether it is
            ready.
        sites: the sites that the server has heard from lately.
        revoked: the sites that it no longer lets in.
        days_left: how many days the kit's certificate is still valid.
        trouble: why a site is not connected, or soon cannot connect, in words.
    """

    kind: str
    name: str
    running: bool
    pid: int | None
    since: datetime.datetime | None
    memory: int
    runs: int
    connected: bool
    sites: tuple[str, ...]
    revoked: tuple[str, ...]
    days_left: int
    trouble: str


# --- the verbs --------------------------------------------------------------------------


def start(kit: Kit) -> NoReturn:
    """Tidy the kit up, and become its resident process.

    It ends with 0 once SIGTERM or Ctrl-C asked it to, and with another code otherwise: a service
    manager then starts it again. Raises KitError if it cannot start, or is running already;
    LockedKeyError.
    """
    launcher = _check(kit)
    held = lock_kit(kit.path)
    if held is None:
        raise KitError(
            f"the {kit.kind} is already running",
            where=str(kit.path),
            fix=f"stop it first: `confide {kit.kind} stop KIT`",
        )
    held.close()
    _end(kit, wait=0.0)  # what a killed resident process left
    if kit.kind == SERVER:
        revoked(kit)  # a server does not start with a damaged list
        _check_port(kit)
    open_signer(kit, make=True)
    kits.tidy_kit(kit.path)
    with files.for_the_owner():
        for name in ("run", "tmp", "store", MODELS, *(("public",) if kit.kind == SERVER else ())):
            files.private_folder(kit.path / name)
        kits.write_policies(kit.path, kit.kind, launcher=launcher)  # an earlier release's go
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", SERVICE, str(kit.path)], _environment(kit))


def stop(kit: Kit, *, wait: float = 20.0) -> bool:
    """End all processes of the kit, and kill those that remain after `wait` seconds.

    Returns once none is left; False if none was running. Raises KitError if one cannot be killed.
    """
    ended = _end(kit, wait=wait)
    (kit.path / STATE).unlink(missing_ok=True)
    return ended


def lives(kit: Kit) -> bool:
    """Return whether any process of the kit is there."""
    return bool(_processes(kit))


def status(kit: Kit) -> Status:
    """Return the state of the kit's processes, as far as this machine can tell. Raises KitError."""
    processes = _processes(kit)
    resident = next((one for one in processes if _runs(one, SERVICE)), None)
    state = _state(kit)
    fresh = _just(state.get("at", 0.0))
    if kit.kind == SERVER:
        fresh = True  # it notes something only when it hears from a site
    mine = resident is not None and state.get("pid") == resident.pid
    connected = bool(mine and fresh and state.get("connected"))
    refused = bool(state.get("refused"))  # it ends then, and is started again
    trouble = kits.expiry_message(kit)
    if not trouble and (resident is not None or refused) and not connected:
        try:
            trouble = kits.connection_problem(kit, _own_proxy(kit))
        except ConfideError as error:
            trouble = str(error)
    left = kits.expires(kit) - datetime.datetime.now(datetime.UTC)
    since = None if resident is None else resident.create_time()
    return Status(
        kind=kit.kind,
        name=kit.name,
        running=resident is not None,
        pid=None if resident is None else resident.pid,
        since=None if since is None else datetime.datetime.fromtimestamp(since, datetime.UTC),
        memory=sum(one.info["memory_info"].rss for one in processes if one.info["memory_info"]),
        runs=sum(_runs(one, *RUN) for one in processes) or (state.get("runs", 0) if mine else 0),
        connected=connected,
        sites=tuple(sorted(heard_from(kit))) if mine else (),
        revoked=revoked(kit) if kit.kind == SERVER else (),
        days_left=math.floor(left.total_seconds() / 86400),
        trouble=trouble or (TURNED_AWAY if refused and not connected else ""),
    )


def heard_from(kit: Kit) -> set[str]:
    """The sites that a running server has heard from lately, by its kit."""
    return {site for site, at in _state(kit).get("sites", {}).items() if _just(at)}


def waited_for(kit: Kit, submission: str) -> set[str]:
    """The connected sites that have a process of this submission, by the server's kit.

    It may have started, or wait for its place.
    """
    return set(_state(kit).get("starting", {}).get(submission, ()))


def _just(at: float) -> bool:
    """True if this moment is less than a heartbeat away; a clock set back leaves some to come."""
    return abs(time.time() - at) < HEARTBEAT_TIMEOUT


# --- before ------------------------------------------------------------------------------


def lock_kit(kit: Path) -> IO[str] | None:
    """The kit's lock, held while the file is open; None if its resident process holds it.

    Raises KitError if the kit's disk has no locks, or no room.
    """
    with os_errors_as(
        KitError, "the kit cannot be locked", where=kit, fix="keep the kit on a local disk"
    ):
        (kit / LOCK).parent.mkdir(mode=0o700, exist_ok=True)
        return files.lock(kit / LOCK)


def _check(kit: Kit) -> LauncherTable | None:
    """The launcher of a site's runs. Raises KitError, LockedKeyError if the kit cannot start."""
    if kit.kind == "lead":
        raise KitError(
            "a lead has no resident process",
            where=str(kit.path),
            fix="use the kit with `confide coordinate --kit`",
        )
    if (kit.path / "startup" / "start.sh").exists():
        raise KitError(
            "this kit was adopted, and FLARE's own script starts it under its own policies",
            where=str(kit.path),
            fix="run startup/start.sh in it, as its consortium does",
        )
    if any(letter.isspace() or letter in "'\"\\" for letter in str(kit.path)):
        raise KitError(
            "FLARE cannot run from a path with spaces or quotes in it",
            where=str(kit.path),
            fix="move the kit to another folder",
        )
    if importlib.util.find_spec("nvflare") is None:
        raise kits.no_engine()
    if expired := kits.expiry_message(kit):
        raise KitError(expired, where=str(kit.path))
    site = own_file(kit)
    if site is None:
        return None
    unlock([Path(site.key)], ask=False)  # a site's processes have no terminal to ask at
    if site.way_out is not None:
        credentials(site.way_out)
    if site.launcher.by != "process":
        from confide.flare.nvidia.launchers import check_launcher  # imports much of FLARE

        check_launcher(kit, site)
    return site.launcher


def own_file(kit: Kit) -> SiteFile | None:
    """A site's own file; None before it is set up, and of a server.

    Raises SettingsError: without the file it is not known whether the site has a proxy.
    """
    file = kit.path / "local" / "site.toml"
    return load_site(file) if kit.kind == "site" and file.exists() else None


def _own_proxy(kit: Kit) -> Proxy | None:
    """The site's proxy, if it has one. Raises SettingsError."""
    site = own_file(kit)
    return None if site is None else site.way_out


def _check_port(kit: Kit) -> None:
    """Raise KitError if another program has the server's port."""
    host = kit.host if kit.host == "localhost" or kit.host.startswith("127.") else ""
    with os_errors_as(
        KitError,
        f"the server cannot listen on port {kit.port}",
        where=kit.path,
        fix="stop the program that uses the port",
    ):
        socket.create_server((host, kit.port)).close()


def _environment(kit: Kit) -> dict[str, str]:
    """Our environment, with this Python first, the kit's mark, and what keeps FLARE in the kit."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    here = str(Path(sys.executable).parent)
    if named := kept.get(PASSPHRASE):
        kept[PASSPHRASE] = str(Path(named).absolute())  # the processes run in another folder
    own = {
        MARK: str(kit.path),
        "PATH": os.pathsep.join((here, kept.get("PATH", os.defpath))),
        "TMPDIR": str(kit.path / "tmp"),
        "HF_HUB_OFFLINE": "1",  # models lie here; nothing is downloaded
        "NVFL_JOB_STORE_ROOT": str(kit.path / STORE / "runs"),
        "NVFLARE_SECURE_LOGGING": "true",
        "PYTHONUNBUFFERED": "1",
    }
    freeing = {"MALLOC_ARENA_MAX": "4"}  # otherwise freed messages stay in the process
    if kit.kind == SERVER:
        freeing["MALLOC_MMAP_THRESHOLD_"] = "1048576"
    models = {"CONFIDE_MODELS": str(kit.path / MODELS)}
    proxy = _own_proxy(kit)
    if proxy is not None:
        own |= in_environment(proxy)
    return freeing | LINK | models | kept | own


# --- the kit's processes ------------------------------------------------------------------


def _processes(kit: Kit) -> list[psutil.Process]:
    """The living processes that carry the kit's mark."""
    facts = ["uids", "status", "environ", "cmdline", "memory_info"]
    return [
        one
        for one in psutil.process_iter(facts)
        if one.pid != os.getpid()
        and one.info["uids"].real == os.getuid()
        and one.info["status"] != psutil.STATUS_ZOMBIE
        and (one.info["environ"] or {}).get(MARK) == str(kit.path)
    ]


def _runs(one: psutil.Process, *modules: str) -> bool:
    """Return whether the process runs one of these modules."""
    return not set(modules).isdisjoint(one.info["cmdline"] or ())


def _end(kit: Kit, *, wait: float) -> bool:
    """Ask the resident process to end, or what it left; then kill. True if anything was running."""
    processes = _processes(kit)
    if not processes:
        cancel_left(kit)
        return False
    for one in [one for one in processes if _runs(one, SERVICE)] or processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    gone = _until(lambda: not _processes(kit), wait)
    if not gone and not _until(lambda: not _killed(kit), KILLED_WITHIN):
        left = ", ".join(str(one.pid) for one in _processes(kit))
        raise KitError(
            "processes of the kit cannot be killed",
            got=left,
            where=str(kit.path),
            fix="restart this machine",
        )
    cancel_left(kit)
    return True


def cancel_left(kit: Kit) -> None:
    """Cancel what the site's process left in Slurm, and forget it."""
    for folder in _folders(kit.path / IN_SLURM):
        name = f"--name=nvfl-{kit.name[:32]}-{folder.name[:8]}"  # as FLARE calls it
        try:
            subprocess.run(["scancel", "-Q", "--me", name], timeout=KILLED_WITHIN, check=True)
        except (OSError, subprocess.SubprocessError):
            continue  # it is tried again at the next start
        shutil.rmtree(folder, ignore_errors=True)


def _killed(kit: Kit) -> list[psutil.Process]:
    """Kill the kit's processes, the resident one first, so that it starts no new one."""
    found = sorted(_processes(kit), key=lambda one: not _runs(one, SERVICE))
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    return found


# --- what they wrote ----------------------------------------------------------------------


def _state(kit: Kit) -> files.Tree:
    try:
        return dict(files.decode_json(files.file_bytes(kit.path / STATE)))
    except (OSError, ValueError):
        return {}


def follows(kit: Kit, *, wait: float) -> bool:
    """Wait at most `wait` seconds until a running server knows the revoked; return if it does."""
    names = list(revoked(kit))
    return _until(lambda: _state(kit).get("revoked") == names, wait)


def _until(true: Callable[[], bool], seconds: float) -> bool:
    """Wait at most N `seconds` until it is true; return whether it became true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True


# --- Revoked sites
#
# The server no longer lets them in, whatever certificate they show.
#
# A certificate cannot be called back, so the server keeps a list of names: the one that NVIDIA
# FLARE reads from a server's kit when it starts. A running server follows that file too (`watch`):
# a site on the list is out at its next heartbeat, and the runs it takes part in are ended.


REVOKED = Path("disabled_clients.json")
"""The list in the server's kit; its name and form are FLARE's."""
_KEY = "disabled_clients"


def revoked(kit: Kit) -> tuple[str, ...]:
    """The sites that this server no longer lets in, sorted. Raises KitError: a damaged list."""
    path = kit.path / REVOKED
    try:
        return tuple(sorted(read_revoked(path)))
    except (OSError, ValueError) as error:
        raise KitError(
            "the list of revoked sites cannot be read, so the server does not start",
            where=str(path),
            fix="restore it from your backup, or delete it and revoke the sites again",
        ) from error


def read_revoked(path: Path) -> set[str]:
    """The names in a list; none if there is no file. Raises OSError, ValueError."""
    try:
        held = files.decode_json(files.file_bytes(path))
    except FileNotFoundError:
        return set()
    names = held.get(_KEY) if isinstance(held, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected a list {_KEY!r}")
    return set(names)


def revoke_site(kit: Kit, site: str) -> bool:
    """Revoke a site, even with a renewed kit. False if it was revoked already.

    A server's kit does not know who takes part, so only the form of the name is checked. Raises
    KitError.
    """
    kits.check_site(site, host=kit.host)
    before = revoked(kit)
    if site in before:
        return False
    _write_revoked(kit, {*before, site})
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
    _write_revoked(kit, set(before) - {site})


def _write_revoked(kit: Kit, names: set[str]) -> None:
    path = kit.path / REVOKED
    text = json.dumps({_KEY: sorted(names)}, indent=2) + "\n"
    what = "the list of revoked sites could not be written"
    with os_errors_as(KitError, what, where=path), files.for_the_owner():
        files.write_atomically(path, text.encode())


# --- Runs at a server
#
# They are deleted only if they are over, or named.
#
# Each run has its folder, `runs/RUN`, and its submissions. NVIDIA FLARE keeps these in
# `store/runs`, each with a name, its outcome, and what the lead can download.


RUNS = "runs"
_RESULT, _META, _ENDED = "result.json", "meta", "FINISHED"


@dataclass(frozen=True)
class StoredRun:
    """One run that a server holds.

    `over`: it has a result or never began, so it cannot be resumed. `last`: when anything of it was
    last written, in UTC. `folders`: everything that is held, `bytes` in all.
    """

    run: str
    over: bool
    last: datetime.datetime
    bytes: int
    folders: tuple[Path, ...]


def stored_runs(kit: Kit) -> tuple[StoredRun, ...]:
    """List the runs that this kit's server holds, the oldest first. Raises KitError: unreadable."""
    with os_errors_as(
        KitError,
        "the server's runs cannot be read",
        where=kit.path,
        fix="run the command as the user that runs the server",
    ):
        submissions = _submissions(kit)
        names = submissions.keys() | {path.name for path in _folders(kit.path / RUNS)}
        found = [_of(_own(kit, name), name, submissions[name]) for name in names]
    return tuple(sorted(found, key=lambda one: (one.last, one.run)))


def choose_runs(
    found: Iterable[StoredRun],
    *,
    older_than: float | None = None,
    runs: Sequence[str] = (),
    now: datetime.datetime | None = None,
) -> tuple[StoredRun, ...]:
    """The runs that are over and older than `days`, and the named ones, over or not.

    Raises KitError if the server holds no run of a given name.
    """
    there = tuple(found)
    unknown = sorted(set(runs) - {one.run for one in there})
    if unknown:
        raise KitError(
            "the server holds nothing of this run",
            got=unknown[0],
            fix="`confide server tidy` lists what it holds",
        )
    since = (now or datetime.datetime.now(datetime.UTC)) - datetime.timedelta(days=older_than or 0)
    return tuple(
        one
        for one in there
        if one.run in runs or (older_than is not None and one.over and one.last < since)
    )


def delete_runs(kit: Kit, those: Iterable[StoredRun]) -> None:
    """Delete everything that is held of these runs.

    A run's own folder goes last, so a run that could not be deleted completely is still listed.
    Raises KitError if the server is running or a folder cannot be deleted.
    """
    alone = lock_kit(kit.path)
    if alone is None or lives(kit):
        raise KitError(
            "the server is running, and nothing is deleted under a running server",
            where=str(kit.path),
            fix="see that no run is under way (`confide server status`), then stop the server",
        )
    with alone:
        for one in those:
            for folder in one.folders:
                with os_errors_as(KitError, f"{one.run} could not be deleted", where=folder):
                    shutil.rmtree(folder)


def _own(kit: Kit, name: str) -> Path | None:
    """The run's own folder; None if it has none, or if a submission's name is not a safe one."""
    try:
        folder = files.path_inside(kit.path / RUNS, name)
    except GuardError:
        return None
    return folder if folder.is_dir() else None


def _of(folder: Path | None, name: str, submissions: Sequence[tuple[Path, str]]) -> StoredRun:
    own = [folder] if folder else []
    folders = (*(path for path, _ in submissions), *own)
    found = [path.lstat() for one in folders for path in (one, *one.rglob("*"))]
    ended = all(status.startswith(_ENDED) for _, status in submissions)
    return StoredRun(
        run=name,
        over=(folder / _RESULT).is_file() if folder else ended,
        last=datetime.datetime.fromtimestamp(max(one.st_mtime for one in found), datetime.UTC),
        bytes=sum(one.st_size for one in found),
        folders=folders,
    )


def _submissions(kit: Kit) -> defaultdict[str, list[tuple[Path, str]]]:
    """For each run, the folder and status of its submissions."""
    found = defaultdict(list)
    for path in _folders(kit.path / STORE / RUNS):
        try:
            meta = files.decode_json(files.file_bytes(path / _META))
            found[printable(meta["name"], 200)].append((path, str(meta["status"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # FLARE does not know this submission either
    return found


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.is_symlink())
