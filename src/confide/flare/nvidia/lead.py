"""The lead's side: submit a run to real sites, follow it, resubmit it, or stop it.

The run's folder at the lead is like that of `confide run`, without what belongs to the sites, and
with the lead's record of it, `coordinate.json`, from which it can continue after a crash.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session

from confide import files
from confide.errors import EngineError, RunError, SettingsError, printable
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.secure.messages import colluders, threshold
from confide.flare import joining
from confide.flare.agreements import ALONE
from confide.flare.kit import (
    CLASSES,
    OUTCOME,
    SUBMITTED_AGAIN,
    Kit,
    connection_problem,
    expiry_message,
    open_kit,
)
from confide.flare.nvidia.connecting import connect_safely
from confide.flare.peers import Signer, open_signer
from confide.flare.proxies import of_environment
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.runs.run import LANES, RunResult
from confide.runs.status import ended, rounds_after, started
from confide.settings import Settings, dump
from confide.version import __version__

RECORD = "coordinate.json"
"""The lead's record of a run: its name, its sites, its submissions."""
STOPPED = "ended.txt"
"""Beside the record if the run was stopped; the next `--resume` deletes it. It is a file of its own
so that the process that follows the run and the one that stops it never write the same file."""
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
LOST = f"the engine lost the run; {SUBMITTED_AGAIN}"
NOT_IN = "{}: not connected, so not in this run: under masks no site joins later"
COMES_BACK = 30.0
"""Seconds to wait for sites that are away before a run that can do without them is submitted again.
Most come back: the server takes 25 to see that one is away."""


@dataclass
class LeadRecord:
    """A run over real sites as its lead knows it."""

    run: str
    sites: list[str]
    submissions: list[str]
    version: str = __version__

    @staticmethod
    def read(folder: RunFolder) -> LeadRecord:
        """The record in a run's folder. Raises RunError if there is none."""
        try:
            return LeadRecord(**files.decode_json(files.file_text(folder.path / RECORD)))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(
                "this is not the folder of a run over real sites",
                where=str(folder.path),
                expected=f"a readable {RECORD}, written by `confide coordinate`",
            ) from error

    def write(self, folder: RunFolder) -> None:
        """Write the record, whole or not at all."""
        folder.write(RECORD, vars(self))


def coordinate_run(
    settings: str | Path,
    *,
    kit: Path,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    sites: Sequence[str] = (),
    resume: bool = False,
    on_event: Watcher | None = None,
) -> RunResult:
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
    result = follow_run(
        chosen,
        name,
        lambda: LeadSession(held),
        out=folder,
        sites=sites,
        resume=resume,
        on_event=on_event,
        place=open_signer(held, make=True),
    )
    return RunResult(folder, result)


def write_run(
    settings: str | Path,
    *,
    kit: Path,
    sites: Sequence[str],
    into: Path,
    overrides: Sequence[str] = (),
    out: Path | None = None,
) -> Path:
    """Write a run's submission below `into`, to be handed in by FLARE's own tools; its folder.

    The run's folder at the lead is made too, so that `coordinate_run(…, resume=True)` follows the
    submission and brings home what it left. Raises SettingsError, KitError, RunError.
    """
    chosen, name, folder = _chosen(settings, overrides, out=out)
    place, run = open_signer(open_kit(kit, "lead"), make=True), RunFolder(folder)
    chosen = with_sums(chosen, len(set(sites)))
    with files.for_the_owner(), run.writing(chosen, resume=False):
        record = LeadRecord(joining.new_run_name(chosen, name), sorted(set(sites)), [])
        least = fewest_there(chosen, len(record.sites))
        written = write_submission(into, chosen, record, place=place, least=least)
        record.write(run)
        run.write("settings.toml", dump(chosen))
    return written


@dataclass(frozen=True)
class StoppedRun:
    """The outcome of a stop: `stopped` if something was running, `finished` if it is complete.

    `folder` is the lead's, and `run` the name of the run at the server and at every site.
    """

    folder: Path
    run: str
    stopped: bool
    finished: bool


def stop_run(
    settings: str | Path, *, kit: Path, overrides: Sequence[str] = (), out: Path | None = None
) -> StoppedRun:
    """Stop a run over real sites early, at the server and at the sites.

    Takes the arguments that the run was started with. Checkpoints and the sites' memory are kept,
    and `coordinate_run(…, resume=True)` continues from there. Stopping a run twice is not an error.

    Raises SettingsError, KitError, RunError (no run in the folder), EngineError (the server cannot
    be reached, or does not end the run).
    """
    _, _, folder = _chosen(settings, overrides, out=out)
    held = open_kit(kit, "lead")
    return stop_submissions(RunFolder(folder), lambda: LeadSession(held))


def _chosen(
    settings: str | Path, overrides: Sequence[str], *, out: Path | None
) -> tuple[Settings, str, Path]:
    """The settings of a run, its name, and its folder at the lead."""
    chosen, name = joining.read_for_sites(settings, overrides)
    return chosen, name, out or Path("runs") / f"{name}-{chosen.method}-{chosen.seed}"


# --- The lead's session with the server
#
# It uses NVIDIA FLARE's Python API.


logging.getLogger("nvflare").addHandler(logging.NullHandler())  # or Python prints its warnings
_NOT_RUNNING = (api_spec.JobNotFound, api_spec.JobNotRunning)
_PATIENCE = 120.0
"""Seconds that the lead waits for a server that went away."""
_CLEANUP = 30.0
"""Seconds that the server takes to clean up after a run, while it still calls it running."""


class LeadSession:
    """The lead's session with the server; reconnects if the connection is lost."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._session = _connected(kit, 20.0)
        self._missed: float | None = None

    def connected(self) -> list[str]:
        """The sites that the server sees, sorted."""
        meta = self._do(lambda session: session.check_status("server"))
        return sorted(_names(meta.get("clients", ()), "client_name"))

    def submit(self, folder: Path) -> str:
        """Hand in a submission; its id. Raises EngineError if the server refuses it."""
        token = secrets.token_hex(16)  # over a bad connection it is still submitted only once
        said = self._do(lambda session: session.submit_job(str(folder), token))
        return files.plain_name(said, "a submission")

    def submissions(self, run: str) -> list[str]:
        """The run's submissions that the server knows, the oldest first."""
        rows = self._do(lambda session: session.list_jobs(name_prefix=run))
        return _names([row for row in rows if row.get("job_name") == run], "job_id")

    def stop(self, submission: str) -> None:
        """Ask the server to end one, there and at the sites; `status` says when it has."""
        try:
            self._do(lambda session: session.abort_job(submission))
        except EngineError as error:
            if not isinstance(error.__cause__, (api_spec.InternalError, *_NOT_RUNNING)):
                raise  # the others mean that it is not running yet, or no longer

    def status(self, submission: str) -> str:
        """Its status; `GONE` if the server calls it running but does not run it.

        A restarted server never looks at what was running before.
        """
        meta = self._do(lambda session: session.get_job_meta(submission))
        status = printable(meta.get("status", ""))
        if status == RUNNING:
            now = self._do(lambda session: session.check_status("server"))
            if submission not in _names(now.get("jobs", ()), "job_id"):
                self._missed = self._missed or time.monotonic()
                return GONE if time.monotonic() - self._missed > _CLEANUP else status
        self._missed = None
        return status

    def events(self, submission: str, since: int) -> files.Tree | None:
        """The run's events after `since`, and its state; None while it is not running."""
        try:
            said = self._session.do_app_command(submission, joining.TOPIC, {"since": since})
        except Exception:
            return None  # the status tells more
        return joining.read_events(said, since)

    def download(self, submission: str, to: Path) -> Path | None:
        """The folder that an ended one left; None if there is none."""
        try:
            found = self._do(lambda session: session.download_job_result(submission, str(to)))
        except EngineError:
            return None
        return Path(found) if found else None

    def close(self) -> None:
        """End the session; ignores failures."""
        with contextlib.suppress(Exception):
            self._session.close()

    def _do(self, what: Callable[[Session], Any]) -> Any:
        """Ask the server; if the connection is lost, reconnect for a while. Raises EngineError."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                return what(self._session)
            except (api_spec.NoConnection, api_spec.SessionClosed) as error:
                if time.monotonic() > give_up:
                    raise _unreachable(self._kit) from error
                self.close()
                time.sleep(2.0)
                with contextlib.suppress(EngineError):
                    self._session = _connected(self._kit, 10.0)
            except _NOT_RUNNING as error:
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


def _names(rows: Sequence[object], key: str) -> list[str]:
    """The proper names in rows of the server's lists."""
    return files.plain_names(row.get(key) for row in rows if isinstance(row, dict))


def _connected(kit: Kit, timeout: float) -> Session:
    """A FLARE session that prints nothing, through the proxy that the environment names, if any.

    Raises EngineError if it cannot connect; SettingsError.
    """
    session: Any = None
    connect_safely()
    try:
        session = Session(str(kit.user), str(kit.path))
        session.api._print_hci = lambda message: None
        session.try_connect(timeout)
    except Exception as error:
        with contextlib.suppress(Exception):
            session.close()
        raise _unreachable(kit) from error
    return session


def _unreachable(kit: Kit) -> EngineError:
    expired = expiry_message(kit)
    fix = (
        "start it with `confide server start`, open its port, and check that the kit is from"
        " the same consortium"
    )
    return EngineError(
        expired or "the server cannot be reached with this kit",
        got=None if expired else connection_problem(kit, of_environment()) or None,
        where=f"{kit.host}:{kit.port}",
        fix=None if expired else fix,
    )


# --- A run over as many submissions as it takes


@files.for_the_owner()
def follow_run(
    settings: Settings,
    name: str,
    connect: Callable[[], LeadSession],
    *,
    out: Path,
    sites: Sequence[str] = (),
    resume: bool = False,
    on_event: Watcher | None = None,
    place: Signer,
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
        place: signs the order.

    Raises SettingsError, RunError, and EngineError with the reason if the run cannot continue.
    """
    method_of(settings)(settings)
    folder = RunFolder(out)
    if settings.federation.sums is not None:
        folder.check(settings, resume=resume)
    session, watch = connect(), on_event or unwatched
    try:
        connected = session.connected()
        named = sorted(sites) or connected
        settings = with_sums(settings, len(named))
        folder.check(settings, resume=resume)
        missing = sorted(set(named) - set(connected))
        least = fewest_there(settings, len(named))
        if not resume and (len(named) - len(missing) < least or not named):
            some = f"at least {least} of " if least < len(named) else ""
            raise EngineError(
                f"not connected: {', '.join(missing)}" if missing else "no site is connected",
                expected=some + ", ".join(named) if named else "at least one site",
                got=", ".join(connected) or "none",
                fix="at the site, `confide site status` says why; `confide site start` starts it",
            )
        with folder.writing(settings, resume=resume):
            if resume:
                record = LeadRecord.read(folder)
                (folder.path / STOPPED).unlink(missing_ok=True)
            else:
                if settings.federation.sums == "masked" and missing:
                    named = [site for site in named if site not in missing]
                    watch(Event("failed", message=NOT_IN.format(", ".join(missing))))
                record = LeadRecord(joining.new_run_name(settings, name), named, [])
                record.write(folder)  # the settings come last: with them the folder is taken
                folder.write("settings.toml", dump(settings))
            return _Follower(settings, folder, record, session, watch, place).to_its_end()
    finally:
        session.close()


def fewest_there(settings: Settings, sites: int) -> int:
    """The sites, of N, that must be connected for a run to begin or to go on.

    `federation.at_least` of them. Under masks those that begin are the sites of all sums of the
    run, and no fewer than a sum of all N would cover.
    """
    own = settings.federation
    if not 0 < own.at_least < sites or settings.method == ALONE:
        return sites
    if own.sums != "masked":
        return own.at_least
    return max(own.at_least, threshold(sites, own.colluding or colluders(sites)))


def with_sums(settings: Settings, sites: int) -> Settings:
    """The settings, with how replies are summed: masked, unless they say or ask for otherwise.

    Raises SettingsError if masks and `federation.up`, or the method, do not go together.
    """
    own = settings.federation
    if not joining.masks_unless_told(settings, sites):
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
    chosen = settings.model_copy(update={"federation": masked})
    method_of(chosen)(chosen)  # raises if the server has to read each update
    return chosen


def write_submission(
    folder: Path, settings: Settings, record: LeadRecord, *, place: Signer, least: int
) -> Path:
    """The submission that FLARE expects: the names of our two classes, and the settings. No code.

    The server begins once `least` of the sites are connected. Gives the folder that holds it.
    """
    controller, executor = CLASSES
    order = joining.Order.signed_by(
        place, record.run, settings, sites=record.sites, version=record.version
    )
    args = {
        "run": record.run,
        "settings": dump(settings),
        "sites": record.sites,
        "version": record.version,
        "lead": order.pack().encode().hex(),  # in hex: FLARE would interpret braces
    }
    contents: dict[str, files.Tree] = {
        "meta.json": {
            "name": record.run,
            "resource_spec": {},
            "min_clients": least,
            "deploy_map": {"app": ["server", *record.sites]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": 0.05},
            "workflows": [{"id": "confide", "path": controller, "args": args}],
            "components": [],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "get_task_timeout": ANSWERED_WITHIN,
            "submit_task_result_timeout": SENT_WITHIN,
            "executors": [{"tasks": ["*"], "executor": {"path": executor, "args": {}}}],
            "components": [],
        },
    }
    target = folder / record.run
    for name, content in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return target


@dataclass
class _Follower:
    """One run, over as many submissions as it takes."""

    settings: Settings
    folder: RunFolder
    record: LeadRecord
    session: LeadSession
    watch: Watcher
    place: Signer
    round: int = 0

    def to_its_end(self) -> Result:
        """Follow the last submission, or a new one, until the run finishes or fails."""
        self.watch(started(self.settings, self.record.run, self.folder.path))
        vain = 0
        submission = self._submission_to_follow()
        while True:
            before = self.round
            outcome = self._follow(submission)
            if outcome.get("state") == "finished":
                result = self.folder.result()
                for event in (*rounds_after(result, self.round), ended(result, self.folder.path)):
                    self.watch(event)  # the server forgets a run that has ended, so ask the result
                return result
            if outcome.get("state") == "failed":
                raise EngineError(
                    f"the run cannot continue: {outcome.get('why')}",
                    fix="repair that, then continue with --resume",
                )
            self._check_not_stopped()
            vain = 0 if self.round > before else vain + 1
            if vain == ATTEMPTS:
                raise EngineError(
                    f"the engine ended the run {ATTEMPTS} times without completing a round",
                    got=printable(outcome.get("why") or outcome.get("status")),
                    fix="look at the server's and the sites' logs, then continue with --resume",
                )
            said = printable(outcome.get("why") or LOST)
            self.watch(Event("failed", self.round or None, message=said))
            time.sleep(min(2.0 * (vain + 1), 10.0))
            self._wait_a_while()
            submission = self._submit()

    def _submission_to_follow(self) -> str:
        """The last submission if it is still running or succeeded, else a new one.

        The server may know a submission that a killed lead had no time to record.
        """
        known = self.session.submissions(self.record.run)
        self._add([one for one in known if one not in self.record.submissions])
        if not self.record.submissions:
            return self._submit()
        last = self.record.submissions[-1]
        while True:
            status = self.session.status(last)
            if status.startswith(FINISHED):
                return last if self._collect(last).get("state") == "finished" else self._submit()
            said = self.session.events(last, 0)
            if said is not None:
                return self._submit() if said.get("state") == "failed" else last
            if status != RUNNING:
                return last  # it waits for a site
            time.sleep(0.3)  # it is just starting, or has failed and is being cleaned up

    def _wait_a_while(self) -> None:
        """Wait for sites that are away, if the run could go on without them."""
        give_up = time.monotonic() + COMES_BACK
        while self._least < len(self.record.sites) and time.monotonic() < give_up:
            if set(self.record.sites) <= set(self.session.connected()):
                return
            time.sleep(1.0)

    @property
    def _least(self) -> int:
        """The sites that the server waits for; at first all that are in masked sums."""
        first = not self.record.submissions and self.settings.federation.sums == "masked"
        return (
            len(self.record.sites) if first else fewest_there(self.settings, len(self.record.sites))
        )

    def _add(self, submissions: list[str]) -> None:
        self.record.submissions += submissions
        self.record.write(self.folder)

    def _submit(self) -> str:
        self._check_not_stopped()
        with tempfile.TemporaryDirectory() as folder:
            submission = self.session.submit(
                write_submission(
                    Path(folder), self.settings, self.record, place=self.place, least=self._least
                )
            )
        self._add([submission])
        try:
            self._check_not_stopped()  # someone may have stopped the run in the meantime
        except RunError:
            self.session.stop(submission)
            raise
        return submission

    def _check_not_stopped(self) -> None:
        if (self.folder.path / STOPPED).exists():
            raise RunError(
                "the run was ended by `confide coordinate --end`",
                where=str(self.folder.path),
                fix="run the same command with --resume to continue from the last checkpoint",
            )

    def _follow(self, submission: str) -> files.Tree:
        """Pass on the run's events until the submission has ended; the state of the run then."""
        since, looked, start, waiting = 0, 0.0, time.monotonic(), False
        while True:
            said = self.session.events(submission, since)
            if said is not None:
                since = said["last"]
                for event in map(joining.read_event, said["events"]):
                    if event is None or event.kind in ("start", "end"):
                        continue  # however many submissions it takes, a run starts and ends once
                    if event.kind == "round":
                        self.round = max(self.round, event.round or 0)
                    self.watch(event)
                if said.get("state") == "failed":
                    return said  # the reason is known; FLARE may take its time to clean up
            if time.monotonic() - looked > 2.0 or said is None:
                looked, status = time.monotonic(), self.session.status(submission)
                waits = status in ("SUBMITTED", "APPROVED") and time.monotonic() - start > 10.0
                if waits and not waiting:
                    waiting = True
                    missing = sorted(set(self.record.sites) - set(self.session.connected()))
                    who = ", ".join(missing) or "the engine"
                    self.watch(Event("failed", self.round or None, message=f"waiting for {who}"))
                if status.startswith(FINISHED):
                    return self._collect(submission) | {"status": status}
            time.sleep(0.3)

    def _collect(self, submission: str) -> files.Tree:
        """Bring back what a submission left; the state of the run, if the server left it."""
        with tempfile.TemporaryDirectory() as folder:
            left = self.session.download(submission, Path(folder))
            found = sorted(filter(files.is_regular, left.rglob(OUTCOME))) if left else []
            outcome: files.Tree = {}
            for path in reversed(found):  # the run's own comes last; the server may say who left it
                with files.open_regular(path) as file:
                    outcome |= joining.read_outcome(file.read(joining.MOST_OUTCOME))
            if outcome.get("state") in ("finished", "failed"):
                joining.bring_home(found[0].parent, self.folder.path)
        return outcome


# --- Stop a run
#
# It can be resumed: its checkpoints at the server and its memory at the sites are kept.


WITHIN = 90.0
"""Seconds to wait for a submission to end, once the server was asked to end it. A server that was
restarted reports submissions that it lost as running for a while."""
AGAIN = 2.0
"""Seconds between two checks, after which the server is asked again."""
SETTLED = 6.0
"""Seconds that a submission that had not begun must stay ended: a server that is just about to
begin it ignores the request."""


def stop_submissions(folder: RunFolder, connect: Callable[[], LeadSession]) -> StoppedRun:
    """Stop every submission of the run in this folder, and wait until it has ended.

    A process that follows the run is told, and does not submit it again. Stopping a run twice is
    not an error. Raises RunError if there is no run, EngineError if the server cannot be reached or
    does not end it in time.
    """
    if not (folder.path / RECORD).exists():
        raise RunError(
            "there is no run over real sites in this folder to end",
            where=str(folder.path),
            fix="name the run's folder with --out",
        )
    run = LeadRecord.read(folder).run
    if (folder.path / "result.json").exists():
        return StoppedRun(folder.path, run, stopped=False, finished=True)
    folder.write(STOPPED, "ended with `confide coordinate --end`; --resume continues it\n")
    session = connect()
    try:
        stopped = [_stop(session, one) for one in session.submissions(run)]
    finally:
        session.close()
    return StoppedRun(folder.path, run, any(stopped), finished=False)


def _stop(session: LeadSession, submission: str) -> bool:
    """True if it was running and was ended. Raises EngineError if it does not end in time."""
    first = status = session.status(submission)
    if first.startswith(FINISHED):
        return False
    settle = 0.0 if first == RUNNING else SETTLED
    start = finished = time.monotonic()
    while time.monotonic() - finished < settle or not status.startswith(FINISHED):
        if time.monotonic() - start > WITHIN:
            raise EngineError(
                "the server was asked to end the run, and has not done so yet",
                got=status,
                fix="run the same command again, or ask whoever runs the server to restart it",
            )
        if not status.startswith(FINISHED):
            finished = time.monotonic()
            session.stop(submission)
        time.sleep(AGAIN)
        status = session.status(submission)
    return not status.endswith(OF_ITSELF)
