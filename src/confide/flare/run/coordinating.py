"""The lead's side: submit a run to real sites, follow it, resubmit it when the engine fails.

The run's folder at the lead is like that of `confide run`, without what belongs to the sites. This
module knows a `Session` with the server, but not how it works.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from confide.errors import EngineError, RunError, SettingsError, printable
from confide.federation.combining import NEEDED
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.files import for_the_owner, is_regular
from confide.flare.kits.peers import Place
from confide.flare.run.collecting import bring_home
from confide.flare.run.events import MOST_HEARD, OUTCOME, heard_event, heard_outcome
from confide.flare.run.notes import Notes, check_not_ended, read, unmark, write
from confide.flare.run.orders import signed_order, submitted
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.outcomes import LANES
from confide.runs.result import Result
from confide.runs.telling import ended, rounds_after, started
from confide.settings import REFERENCES, Settings, dump
from confide.userfiles import Tree, opened

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
CONTROLLER = "confide.flare.nvidia.controller.ConfideController"
EXECUTOR = "confide.flare.nvidia.executor.ConfideExecutor"


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
