"""The lead's side: submit a run to real sites, follow it, resubmit it, or stop it.

The run's folder at the lead is like that of `confide run`, without what belongs to the sites. This
module knows a `Session` with the server, but not how it works.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confide.errors import EngineError, GuardError, RunError, SettingsError, printable
from confide.federation.combining import NEEDED
from confide.federation.events import Event, Watcher, unwatched
from confide.files import Tree, for_the_owner, inside, is_regular, json_of, opened, text_of
from confide.flare.joining import (
    MOST_HEARD,
    OUTCOME,
    heard_event,
    heard_outcome,
    signed_order,
    submitted,
)
from confide.flare.peers import Place
from confide.methods import method_of
from confide.runs.folder import ALONE, CHECKPOINTS, RunFolder
from confide.runs.result import Result
from confide.runs.run import LANES
from confide.runs.standing import ended, rounds_after, started
from confide.settings import REFERENCES, Settings, dump
from confide.version import __version__

# --- The lead's notes
#
# They lie in a run's folder as `coordinate.json`, from which it can continue after a crash.
#
# The mark of a run that was ended is a file of its own, so that the process that follows the run
# and the one that ends it never write the same file.


NOTES = "coordinate.json"
"""The lead's notes of a run: its name, its sites, its submissions."""
ENDED = "ended.txt"
"""Beside the notes if the run was ended early; the next `--resume` deletes it."""


@dataclass
class Notes:
    """A run over real sites as its lead knows it."""

    run: str
    sites: list[str]
    submissions: list[str]
    version: str = __version__


def read(folder: RunFolder) -> Notes:
    """The lead's notes of a run. Raises RunError if there are none."""
    try:
        return Notes(**json_of(text_of(folder.path / NOTES)))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            "this is not the folder of a run over real sites",
            where=str(folder.path),
            expected=f"a readable {NOTES}, written by `confide coordinate`",
        ) from error


def write(folder: RunFolder, notes: Notes) -> None:
    """Write the notes, whole or not at all."""
    folder.write(NOTES, vars(notes))


def mark_ended(folder: RunFolder) -> None:
    """Mark the run as ended, so that no process that follows it submits it again."""
    folder.write(ENDED, "ended with `confide coordinate --end`; --resume continues it\n")


def unmark(folder: RunFolder) -> None:
    """Remove the mark: the run continues."""
    (folder.path / ENDED).unlink(missing_ok=True)


def check_not_ended(folder: RunFolder) -> None:
    """Raise RunError if the run was ended."""
    if (folder.path / ENDED).exists():
        raise RunError(
            "the run was ended by `confide coordinate --end`",
            where=str(folder.path),
            fix="run the same command with --resume to continue from the last checkpoint",
        )


# --- Files of a run that travel
#
# Those that a run writes, by name, and nothing else.
#
# The server copies them to where FLARE collects what the lead may download; the lead takes the
# same files, and no others, from the download.


RESULT = "result.json"
FILES = ("environment.json", "ledger.jsonl", OUTCOME, RESULT)
"""The files of a run, or of one site's part of it. The result comes last, since it marks the run as
finished. The settings do not travel: they are the lead's own."""
_CHECKPOINT = re.compile(r"round-\d{6}\.ckpt")


def carried(folder: Path) -> Iterator[tuple[str, ...]]:
    """The files of this run that travel, as names below the folder, the result last."""
    for site in _names(folder / ALONE):
        for file in _of_a_part(folder / ALONE / site):
            yield (ALONE, site, *file)
    yield from _of_a_part(folder)


def collect(folder: Path, into: Path) -> None:
    """Copy the files of a run that travel, readable by their owner only."""
    with for_the_owner():
        for names in carried(folder):
            _copy(inside(folder, *names), inside(into, *names))


def bring_home(source: Path, target: Path) -> None:
    """Copy a downloaded run into its folder, each file whole or not at all.

    Earlier checkpoints that the download lacks are deleted: the run keeps its last and its best.
    """
    new = set(carried(source))
    for names in carried(target):
        if CHECKPOINTS in names and names not in new and (source / Path(*names).parent).is_dir():
            inside(target, *names).unlink()
    collect(source, target)


def _of_a_part(folder: Path) -> Iterator[tuple[str, ...]]:
    for name in _names(folder / CHECKPOINTS):
        if _CHECKPOINT.fullmatch(name) and is_regular(folder / CHECKPOINTS / name):
            yield CHECKPOINTS, name
    yield from ((name,) for name in FILES if is_regular(folder / name))


def _names(folder: Path) -> list[str]:
    """The plain names in a folder; none if it is a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _is_plain(folder, path.name))


def _is_plain(folder: Path, name: str) -> bool:
    try:
        inside(folder, name)
    except GuardError:
        return False
    return True


def _copy(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f"{place.name}.new")
    shutil.copyfile(path, fresh)
    fresh.replace(place)


RUNNING, FINISHED, OF_ITSELF, GONE = "RUNNING", "FINISHED", "COMPLETED", "FINISHED:LOST"
"""The status of a submission, in FLARE's words. An ended one begins with `FINISHED`, and ends with
`COMPLETED` if nobody stopped it. `GONE`: the server calls it running but does not run it."""
ATTEMPTS = 5
"""Submissions without a new checkpoint before we give up."""
ANSWERED_WITHIN = 30.0
"""Seconds without any part of an ask before a site asks again for what a broken network lost.
However long an ask is, its parts are small (`processes.LINK`)."""
SENT_WITHIN = 60.0
"""Seconds before a site resends a reply that got lost: enough for the 1 MiB still under way when
the last part was handed over, and for the server to take it."""
LOST = "the engine lost the run; submitted again"
CONTROLLER = "confide.flare.nvidia.components.ConfideController"
EXECUTOR = "confide.flare.nvidia.components.ConfideExecutor"


class Session(Protocol):
    """The lead's connection to the server."""

    def connected(self) -> list[str]:
        """The sites that the server sees, sorted."""
        ...

    def submit(self, folder: Path) -> str:
        """Hand in a submission; its id."""
        ...

    def submissions(self, run: str) -> list[str]:
        """The run's submissions that the server knows, the oldest first."""
        ...

    def stop(self, submission: str) -> None:
        """Ask the server to end one, there and at the sites; `status` says when it has."""
        ...

    def status(self, submission: str) -> str:
        """Its status, in FLARE's words; that of an ended one begins with FINISHED."""
        ...

    def told(self, submission: str, since: int) -> Tree | None:
        """The run's events after `since`, and its state (see `events`); None if it is silent."""
        ...

    def download(self, submission: str, to: Path) -> Path | None:
        """The folder that an ended one left; None if there is none."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


@for_the_owner()
def follow(
    settings: Settings,
    name: str,
    connect: Callable[[], Session],
    *,
    out: Path,
    sites: Sequence[str] = (),
    resume: bool = False,
    on_event: Watcher | None = None,
    place: Place | None = None,
) -> Result:
    """Run `settings` over real sites; the content of result.json.

    Args:
        settings: those of the run, suited to real sites (`joining.check_suited`).
        name: the name of the run.
        connect: opens a session with the server.
        out: the run's folder at the lead.
        sites: the sites that take part; all that are connected, if none is named.
        resume: continue the run in that folder.
        on_event: is told what happens.
        place: signs the order; over real sites the server takes only signed ones.

    Raises SettingsError, RunError, and EngineError with the reason if the run cannot continue.
    """
    method_of(settings)(settings)
    folder = RunFolder(out)
    if settings.federation.sums is not None:
        folder.check(settings, resume=resume)
    watch = on_event or unwatched
    session = connect()
    try:
        settings = with_sums(settings, len(sites or session.connected()))
        folder.check(settings, resume=resume)
        there = None if resume else _sites(session, sites)
        with folder.writing(settings, resume=resume):
            if there is None:
                notes = read(folder)
                unmark(folder)
            else:
                notes = _begin(settings, name, folder, there)
            return _Following(settings, folder, notes, session, watch, place).to_its_end()
    finally:
        session.close()


def with_sums(settings: Settings, sites: int) -> Settings:
    """The settings, with how replies are summed: masked, unless they say or ask for otherwise.

    Fewer than three sites cannot mask, and neither can rules that look at single replies or draw
    the sites of a round. Raises SettingsError if masks and `federation.up` do not go together.
    """
    own = settings.federation
    looks = own.combine != "mean" or own.most_norm is not None or own.fraction < 1
    if own.sums is not None or settings.method in REFERENCES or sites < NEEDED or looks:
        return settings
    if own.up not in LANES:
        raise SettingsError(
            f"federation.up = {own.up!r} lets the server see what each site learnt, and real sites"
            " mask that unless the settings say otherwise",
            expected=" or ".join(map(repr, LANES)),
            got=repr(own.up),
            fix='change federation.up, or set federation.sums = "plain"',
        )
    masked = own.model_copy(update={"sums": "masked"})
    return settings.model_copy(update={"federation": masked})


def _sites(session: Session, sites: Sequence[str]) -> list[str]:
    """The sites of a new run: those named, or all. Raises EngineError if one is missing."""
    there = session.connected()
    missing = sorted(set(sites) - set(there))
    if missing or not there:
        raise EngineError(
            f"not connected: {', '.join(missing)}" if missing else "no site is connected",
            expected=", ".join(sites) or "at least one site",
            got=", ".join(there) or "none",
            fix="at the site, `confide site status` says why; `confide site start` starts it",
        )
    return sorted(sites) or there


def _begin(settings: Settings, name: str, folder: RunFolder, sites: list[str]) -> Notes:
    """Write the lead's notes of a new run."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    plain = plain.lstrip("-_.")[:40] or "run"
    run = f"{plain}-{settings.method}-{settings.seed}-{secrets.token_hex(3)}"
    notes = Notes(run, sites, [])
    write(folder, notes)  # the settings come last: with them the folder is taken
    folder.write("settings.toml", dump(settings))
    return notes


def write_submission(
    folder: Path, settings: Settings, notes: Notes, *, place: Place | None = None
) -> Path:
    """The submission that FLARE expects: the names of our two classes, and the settings. No code.

    Gives the folder that holds it.
    """
    signed = place and signed_order(
        place, run=notes.run, settings=settings, sites=notes.sites, version=notes.version
    )
    controller = {
        "run": notes.run,
        "settings": dump(settings),
        "sites": notes.sites,
        "version": notes.version,
        "lead": submitted(signed) if signed else "",
    }
    files: dict[str, Tree] = {
        "meta.json": {
            "name": notes.run,
            "resource_spec": {},
            "min_clients": len(notes.sites),
            "mandatory_clients": notes.sites,
            "deploy_map": {"app": ["server", *notes.sites]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": 0.05},
            "workflows": [{"id": "confide", "path": CONTROLLER, "args": controller}],
            "components": [],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "get_task_timeout": ANSWERED_WITHIN,
            "submit_task_result_timeout": SENT_WITHIN,
            "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}],
            "components": [],
        },
    }
    target = folder / notes.run
    for name, content in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return target


class _Following:
    """One run, over as many submissions as it takes."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        notes: Notes,
        session: Session,
        watch: Watcher,
        place: Place | None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._notes = notes
        self._session = session
        self._watch = watch
        self._place = place
        self._round = 0
        self._waiting = False

    def to_its_end(self) -> Result:
        """Follow the last submission, or a new one, until the run finishes or fails."""
        self._watch(started(self._settings, self._notes.run, self._folder.path))
        vain = 0
        submission = self._to_follow()
        while True:
            before = self._round
            outcome = self._follow(submission)
            if outcome.get("state") == "finished":
                result = self._folder.result()
                for event in (*rounds_after(result, self._round), ended(result, self._folder.path)):
                    self._watch(event)  # the server forgets a run that has ended, so ask the result
                return result
            if outcome.get("state") == "failed":
                raise EngineError(
                    f"the run cannot continue: {outcome.get('why')}",
                    fix="repair that, then continue with --resume",
                )
            check_not_ended(self._folder)
            vain = 0 if self._round > before else vain + 1
            if vain == ATTEMPTS:
                raise EngineError(
                    f"the engine ended the run {ATTEMPTS} times without completing a round",
                    got=printable(outcome.get("status")),
                    fix="look at the server's and the sites' logs, then continue with --resume",
                )
            self._watch(Event("failed", self._round or None, message=LOST))
            time.sleep(min(2.0 * (vain + 1), 10.0))
            submission = self._submit()

    def _to_follow(self) -> str:
        """The last submission if it is still running or succeeded, else a new one.

        The server may know a submission that a killed lead had no time to note.
        """
        known = self._session.submissions(self._notes.run)
        self._note([one for one in known if one not in self._notes.submissions])
        if not self._notes.submissions:
            return self._submit()
        last = self._notes.submissions[-1]
        while True:
            status = self._session.status(last)
            if status.startswith(FINISHED):
                return last if self._collect(last).get("state") == "finished" else self._submit()
            said = self._session.told(last, 0)
            if said is not None:
                return self._submit() if said.get("state") == "failed" else last
            if status != RUNNING:
                return last  # it waits for a site
            time.sleep(0.3)  # it is just starting, or has failed and is being cleaned up

    def _wait_for(self, since: float) -> None:
        """Say who keeps a submission waiting, once it has waited for a while."""
        if not self._waiting and time.monotonic() - since > 10.0:
            self._waiting = True
            missing = sorted(set(self._notes.sites) - set(self._session.connected()))
            who = ", ".join(missing) or "the engine"
            self._watch(Event("failed", self._round or None, message=f"waiting for {who}"))

    def _note(self, submissions: list[str]) -> None:
        self._notes.submissions += submissions
        write(self._folder, self._notes)

    def _submit(self) -> str:
        check_not_ended(self._folder)
        with tempfile.TemporaryDirectory() as folder:
            submission = self._session.submit(
                write_submission(Path(folder), self._settings, self._notes, place=self._place)
            )
        self._note([submission])
        try:
            check_not_ended(self._folder)  # someone may have ended the run in the meantime
        except RunError:
            self._session.stop(submission)
            raise
        return submission

    def _follow(self, submission: str) -> Tree:
        """Pass on the run's events until the submission has ended; the state of the run then."""
        since, looked, start = 0, 0.0, time.monotonic()
        self._waiting = False
        while True:
            said = self._session.told(submission, since)
            if said is not None:
                since = said["last"]
                for event in said["events"]:
                    self._pass_on(event)
                if said.get("state") == "failed":
                    return said  # the reason is known; FLARE may take its time to clean up
            if time.monotonic() - looked > 2.0 or said is None:
                looked, status = time.monotonic(), self._session.status(submission)
                if status in ("SUBMITTED", "APPROVED"):
                    self._wait_for(start)
                if status.startswith(FINISHED):
                    return self._collect(submission) | {"status": status}
            time.sleep(0.3)

    def _pass_on(self, told: object) -> None:
        event = heard_event(told)
        if event is None or event.kind in ("start", "end"):
            return  # a run starts and ends once, however many submissions it takes: we tell it
        if event.kind == "round":
            self._round = max(self._round, event.round or 0)
        self._watch(event)

    def _collect(self, submission: str) -> Tree:
        """Bring back what a submission left; the state of the run, if the server left it."""
        with tempfile.TemporaryDirectory() as folder:
            left = self._session.download(submission, Path(folder))
            found = sorted(left.rglob(OUTCOME)) if left else []
            if not found or not is_regular(found[0]):
                return {}
            with opened(found[0]) as file:
                outcome = heard_outcome(file.read(MOST_HEARD))
            if outcome.get("state") in ("finished", "failed"):
                bring_home(found[0].parent, self._folder.path)
        return outcome


# --- Stopping a run over real sites
#
# It can be resumed.
#
# Its checkpoints at the server and its memory at the sites are kept.


WITHIN = 90.0
"""Seconds to wait for a submission to end, once the server was asked to end it. A server that was
restarted reports submissions that it lost as running for a while."""
AGAIN = 2.0
"""Seconds between two checks, after which the server is asked again."""
SETTLED = 6.0
"""Seconds that a submission that had not begun must stay ended: a server that is just about to
begin it ignores the request."""


@dataclass(frozen=True)
class Ending:
    """The outcome: `stopped` if something was running, `finished` if the run is complete.

    `folder` is the lead's, and `run` the name of the run at the server and at every site.
    """

    folder: Path
    run: str
    stopped: bool
    finished: bool


def end_run(folder: RunFolder, connect: Callable[[], Session]) -> Ending:
    """End every submission of the run in this folder, and wait until it has ended.

    A process that follows the run is told, and does not submit it again. Ending a run twice is not
    an error. Raises RunError if there is no run, EngineError if the server cannot be reached or
    does not end it in time.
    """
    if not (folder.path / NOTES).exists():
        raise RunError(
            "there is no run over real sites in this folder to end",
            where=str(folder.path),
            fix="name the run's folder with --out",
        )
    run = read(folder).run
    if (folder.path / "result.json").exists():
        return Ending(folder.path, run, stopped=False, finished=True)
    mark_ended(folder)
    session = connect()
    try:
        stopped = [_end(session, one) for one in session.submissions(run)]
    finally:
        session.close()
    return Ending(folder.path, run, any(stopped), finished=False)


def _end(session: Session, submission: str) -> bool:
    """True if it was running and was ended. Raises EngineError if it does not end in time."""
    first = status = session.status(submission)
    if first.startswith(FINISHED):
        return False
    settle = 0.0 if first == RUNNING else SETTLED
    start = ended = time.monotonic()
    while time.monotonic() - ended < settle or not status.startswith(FINISHED):
        if time.monotonic() - start > WITHIN:
            raise EngineError(
                "the server was asked to end the run, and has not done so yet",
                got=status,
                fix="run the same command again, or ask whoever runs the server to restart it",
            )
        if not status.startswith(FINISHED):
            ended = time.monotonic()
            session.stop(submission)
        time.sleep(AGAIN)
        status = session.status(submission)
    return not status.endswith(OF_ITSELF)
