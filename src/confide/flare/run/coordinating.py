"""The lead's side: submit a run to real sites, follow it, submit it again when the engine fails.

The run's folder at the lead is that of `confide run`, but for what belongs to the sites. Knows a
`Session` with the server, not what it is made of.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from confide.errors import EngineError, RunError, printable
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.files import for_the_owner, is_regular
from confide.flare.kits.peers import Place
from confide.flare.run.collecting import bring_home
from confide.flare.run.events import MOST_HEARD, OUTCOME, heard_event, heard_outcome
from confide.flare.run.notes import Notes, check_not_ended, read, unmark, write
from confide.flare.run.orders import signed_order, submitted
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.settings import Settings, dump
from confide.userfiles import opened

RUNNING, FINISHED, OF_ITSELF, GONE = "RUNNING", "FINISHED", "COMPLETED", "FINISHED:LOST"
"""How a submission stands, in the engine's words: those of an ended one begin with `FINISHED`, and
end with `COMPLETED` where nobody ended it. `GONE`: the server does not run what it calls running.
"""
ATTEMPTS = 5
"""So often a run is submitted again without a new checkpoint before we give up."""
ANSWERED_WITHIN = 30.0
"""Seconds without any part of an ask, until a site asks again for what got lost on a network that
was cut. However long an ask is, its parts are small (`processes.LINK`)."""
SENT_WITHIN = 60.0
"""Seconds until a site sends again a reply that got lost: enough for the 1 MiB that is on its way
when the last part was handed over, and for the server to take it."""
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
        """Those of the run of that name that the server knows, the oldest first."""
        ...

    def stop(self, submission: str) -> None:
        """Ask the server to end one, there and at the sites; `status` says when it has."""
        ...

    def status(self, submission: str) -> str:
        """How it stands, in the engine's words; those of an ended one begin with FINISHED."""
        ...

    def told(self, submission: str, since: int) -> dict[str, Any] | None:
        """What the run says of itself (`events` beside this); None where it does not answer."""
        ...

    def download(self, submission: str, to: Path) -> Path | None:
        """The folder that an ended one left; None where there is none."""
        ...

    def close(self) -> None:
        """Say good-bye."""
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
    """Run `settings` over real sites; what result.json says.

    Args:
        settings: of the run, suited to real sites (`joining.check_suited`).
        name: of the run.
        connect: gives a session with the server.
        out: the run's folder at the lead.
        sites: who takes part; all that are connected, if none is named.
        resume: go on with the run of that folder.
        on_event: is told what happens.
        place: who signs the order; a server over real sites takes no other.

    Raises SettingsError, RunError, EngineError, and what ended the run, with the site's name.
    """
    method_of(settings)(settings)
    folder = RunFolder(out)
    folder.check(settings, resume=resume)
    watch = on_event or unwatched
    session = connect()
    try:
        if resume:
            folder.close()
            notes = read(folder)
            unmark(folder)
        else:
            notes = _begin(settings, name, folder, session, sites=sites)
        return _Following(settings, folder, notes, session, watch, place).to_its_end()
    finally:
        session.close()


def _begin(
    settings: Settings, name: str, folder: RunFolder, session: Session, *, sites: Sequence[str]
) -> Notes:
    """Look who is there, and write down what the run is."""
    there = session.connected()
    missing = sorted(set(sites) - set(there))
    if missing or not there:
        raise EngineError(
            f"not connected: {', '.join(missing) or 'no site is'}",
            expected=", ".join(sites) or "at least one site",
            got=", ".join(there) or "none",
            fix="at the site, `confide site status` says why; `confide site start` starts it",
        )
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    plain = plain.lstrip("-_.")[:40] or "run"
    run = f"{plain}-{settings.method}-{settings.seed}-{secrets.token_hex(3)}"
    notes = Notes(run, sorted(sites) or there, [])
    folder.close()
    write(folder, notes)  # the settings come last: with them the folder is taken
    folder.write("settings.toml", dump(settings))
    return notes


def write_submission(
    folder: Path, settings: Settings, notes: Notes, *, place: Place | None = None
) -> Path:
    """What the engine wants: names of our two classes, and the settings. No code."""
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
    files: dict[str, dict[str, Any]] = {
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
        """Follow the last submission, or a new one, until the run is finished or cannot go on."""
        vain = 0
        submission = self._to_follow()
        while True:
            before = self._round
            outcome = self._follow(submission)
            if outcome.get("state") == "finished":
                return self._folder.result()
            if outcome.get("state") == "failed":
                raise EngineError(
                    f"the run cannot go on: {outcome.get('why')}",
                    fix="mend it, then continue with --resume",
                )
            check_not_ended(self._folder)
            vain = 0 if self._round > before else vain + 1
            if vain == ATTEMPTS:
                raise EngineError(
                    f"the engine ended the run {ATTEMPTS} times without a whole round between",
                    got=printable(outcome.get("status")),
                    fix="look at the server's and the sites' logs, then continue with --resume",
                )
            self._watch(Event("failed", self._round or None, message=LOST))
            time.sleep(min(2.0 * (vain + 1), 10.0))
            submission = self._submit()

    def _to_follow(self) -> str:
        """The last submission, if it goes on or came to its end; else a new one.

        The server may know one that a lead who was killed had no time to note.
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
            time.sleep(0.3)  # it is just beginning, or has failed and is being cleared up

    def _wait_for(self, since: float) -> None:
        """Say who keeps a submission waiting, when it has waited for a while."""
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
            check_not_ended(self._folder)  # after the submission: whoever ends the run may be quick
        except RunError:
            self._session.stop(submission)
            raise
        return submission

    def _follow(self, submission: str) -> dict[str, Any]:
        """Pass on what the run tells, until the submission has ended; how the run stands then."""
        since, looked, start = 0, 0.0, time.monotonic()
        self._waiting = False
        while True:
            said = self._session.told(submission, since)
            if said is not None:
                since = said["last"]
                for event in said["events"]:
                    self._pass_on(event)
                if said.get("state") == "failed":
                    return said  # why is known; the engine may take its time to clear up
            if time.monotonic() - looked > 2.0 or said is None:
                looked, status = time.monotonic(), self._session.status(submission)
                if status in ("SUBMITTED", "APPROVED"):
                    self._wait_for(start)
                if status.startswith(FINISHED):
                    return self._collect(submission) | {"status": status}
            time.sleep(0.3)

    def _pass_on(self, told: Any) -> None:
        event = heard_event(told)
        if event is None:
            return
        if event.kind == "round":
            self._round = max(self._round, event.round or 0)
        self._watch(event)

    def _collect(self, submission: str) -> dict[str, Any]:
        """Bring back what a submission left; how the run stands, if it got to say."""
        with tempfile.TemporaryDirectory() as folder:
            left = self._session.download(submission, Path(folder))
            found = sorted(left.rglob(OUTCOME)) if left else []
            if not found or not is_regular(found[0]):
                return {}
            with opened(found[0]) as file:
                outcome = heard_outcome(file.read(MOST_HEARD))
            if outcome.get("state") == "finished" or outcome.get("state") == "failed":
                bring_home(found[0].parent, self._folder.path)
        return outcome
