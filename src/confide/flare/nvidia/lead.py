"""The lead's public functions and its session: start a run over real sites, or end one."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nvflare.fuel.flare_api.api_spec import (
    InternalError,
    JobNotFound,
    JobNotRunning,
    NoConnection,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session

from confide.errors import EngineError, GuardError, printable
from confide.federation.events import Watcher
from confide.files import Tree, plain_name
from confide.flare.joining import TOPIC, check_suited, heard_told
from confide.flare.kit import Kit, expiry_message, open_kit
from confide.flare.lead import GONE, RUNNING, Ending, end_run, follow
from confide.flare.peers import place_of
from confide.recipes import settings_file
from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.settings import Settings, load

# --- The lead's session with the server
#
# It uses NVIDIA FLARE's Python API.


T = TypeVar("T")

logging.getLogger("nvflare").addHandler(logging.NullHandler())  # or Python prints its warnings
_PATIENCE = 120.0
"""Seconds that the lead waits for a server that went away."""
_CLEARING = 30.0
"""Seconds that the server takes to clean up after a run, while it still calls it running."""


class LeadSession:
    """The lead's session with the server; reconnects if the connection is lost."""

    def __init__(self, kit: Kit, *, timeout: float = 20.0) -> None:
        self._kit = kit
        self._session = _connected(kit, timeout)
        self._missed: float | None = None

    def connected(self) -> list[str]:
        """The sites that the server sees, sorted."""
        meta = self._do(lambda session: session.check_status("server"))
        named = [_named(row, "client_name") for row in meta.get("clients", ())]
        return sorted(name for name in named if name)

    def submit(self, folder: Path) -> str:
        """Hand in a submission; its id. Raises EngineError if the server refuses it."""
        token = secrets.token_hex(16)  # over a bad connection it is still submitted only once
        said = self._do(lambda session: session.submit_job(str(folder), token))
        return plain_name(said, "a submission")

    def submissions(self, run: str) -> list[str]:
        """The run's submissions that the server knows, the oldest first."""
        rows = self._do(lambda session: session.list_jobs(name_prefix=run))
        found = [_named(row, "job_id") for row in rows if row.get("job_name") == run]
        return [name for name in found if name]

    def stop(self, submission: str) -> None:
        """Ask the server to end one, there and at the sites; `status` says when it has."""
        try:
            self._do(lambda session: session.abort_job(submission))
        except EngineError as error:
            if not isinstance(error.__cause__, InternalError | JobNotFound | JobNotRunning):
                raise  # the others mean that it is not running yet, or no longer

    def status(self, submission: str) -> str:
        """Its status; `GONE` if the server calls it running but does not run it.

        A restarted server never looks at what was running before.
        """
        meta = self._do(lambda session: session.get_job_meta(submission))
        status = printable(meta.get("status", ""))
        if status != RUNNING or submission in self._running():
            self._missed = None
            return status
        self._missed = self._missed or time.monotonic()
        return GONE if time.monotonic() - self._missed > _CLEARING else status

    def _running(self) -> list[str]:
        meta = self._do(lambda session: session.check_status("server"))
        return [name for row in meta.get("jobs", ()) if (name := _named(row, "job_id"))]

    def told(self, submission: str, since: int) -> Tree | None:
        """The run's events after `since`, and its state; None while it is not running."""
        try:
            said = self._session.do_app_command(submission, TOPIC, {"since": since})
        except Exception:
            return None  # the status tells more
        return heard_told(said, since)

    def download(self, submission: str, to: Path) -> Path | None:
        """The folder that an ended one left; None if there is none."""
        try:
            found = self._do(lambda session: session.download_job_result(submission, str(to)))
        except EngineError:
            return None
        return Path(found) if found else None

    def close(self) -> None:
        """End the session; ignores failures."""
        try:
            self._session.close()
        except Exception:
            return

    def _do(self, what: Callable[[Session], T]) -> T:
        """Ask the server; if the connection is lost, reconnect for a while. Raises EngineError."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                return what(self._session)
            except (NoConnection, SessionClosed) as error:
                if time.monotonic() > give_up:
                    raise _unreachable(self._kit) from error
                self._again()
            except (JobNotFound, JobNotRunning) as error:
                raise EngineError(
                    "the server does not know this submission",
                    got=printable(error),
                    fix="start the run again, without --resume",
                ) from error
            except Exception as error:
                raise EngineError(
                    f"the server refused: {type(error).__name__}: {printable(error)}",
                    where=f"{self._kit.host}:{self._kit.port}",
                ) from error

    def _again(self) -> None:
        self.close()
        time.sleep(2.0)
        try:
            self._session = _connected(self._kit, 10.0)
        except EngineError:
            return


def _named(row: Tree, key: str) -> str | None:
    """A name in a row of the server's lists; None if it is not a proper name."""
    try:
        return plain_name(row[key], key)
    except (GuardError, LookupError, TypeError):
        return None


def _connected(kit: Kit, timeout: float) -> Session:
    """A FLARE session that prints nothing. Raises EngineError if it cannot connect."""
    try:
        session = Session(str(kit.user), str(kit.path))
        session.api._print_hci = _say_nothing
    except Exception as error:
        raise _unreachable(kit) from error
    try:
        session.try_connect(timeout)
    except Exception as error:
        with contextlib.suppress(Exception):
            session.close()
        raise _unreachable(kit) from error
    return session


def _say_nothing(message: str) -> None:
    """Replace FLARE's `print`."""


def _unreachable(kit: Kit) -> EngineError:
    said = expiry_message(kit)
    return EngineError(
        said or "the server cannot be reached with this kit",
        where=f"{kit.host}:{kit.port}",
        fix=None
        if said
        else "start it with `confide server start`, open its port, and check that the kit is from"
        " the same consortium",
    )


@dataclass(frozen=True)
class Coordinated:
    """A finished run over real sites: the lead's folder, and the content of result.json."""

    folder: Path
    result: Result


def coordinate(
    settings: str | Path,
    *,
    kit: Path,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    sites: Sequence[str] = (),
    resume: bool = False,
    on_event: Watcher | None = None,
) -> Coordinated:
    """Train and score over real sites, as the settings say.

    Args:
        settings: a TOML file, or the name of a recipe; it names no one's text.
        kit: the lead's startup kit.
        overrides: `key=value` texts that replace values in the file.
        out: the run's folder at the lead; by default `runs/NAME-METHOD-SEED`.
        sites: the sites that take part; all that are connected, if none is named.
        resume: continue the run in that folder.
        on_event: is told what happens.

    Raises SettingsError, KitError, RunError, EngineError.
    """
    chosen, name, folder = _chosen(settings, overrides, out=out)
    held = open_kit(kit, "lead")
    result = follow(
        chosen,
        name,
        lambda: LeadSession(held),
        out=folder,
        sites=sites,
        resume=resume,
        on_event=on_event,
        place=place_of(held, make=True),
    )
    return Coordinated(folder, result)


def end(
    settings: str | Path, *, kit: Path, overrides: Sequence[str] = (), out: Path | None = None
) -> Ending:
    """Stop a run over real sites early, at the server and at the sites.

    Takes the arguments that the run was started with. Checkpoints and the sites' memory are kept,
    and `coordinate(…, resume=True)` continues from there. Ending a run twice is not an error.

    Raises SettingsError, KitError, RunError (no run in the folder), EngineError (the server cannot
    be reached, or does not end the run).
    """
    _, _, folder = _chosen(settings, overrides, out=out)
    held = open_kit(kit, "lead")
    return end_run(RunFolder(folder), lambda: LeadSession(held))


def _from_the_servers(settings: Settings, folder: Path) -> Settings:
    """The settings with their public files as written in the file, relative to the server's folder.

    Loading made them paths below `folder`, where the settings file lies.
    """
    files = tuple(path.removeprefix(f"{folder}/") for path in settings.public.files)
    public = settings.public.model_copy(update={"files": files})
    return settings.model_copy(update={"public": public})


def _chosen(
    settings: str | Path, overrides: Sequence[str], *, out: Path | None
) -> tuple[Settings, str, Path]:
    """The settings of a run, its name, and its folder at the lead."""
    path = settings_file(settings)
    chosen = _from_the_servers(load(path, overrides), path.parent.resolve())
    check_suited(chosen, where=str(path))
    name = chosen.name or path.stem
    return chosen, name, out or Path("runs") / f"{name}-{chosen.method}-{chosen.seed}"
