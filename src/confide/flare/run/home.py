"""A real site during a run: its own file, its consent, its text, its folder; bytes in, bytes out.

What a run leaves at a site is a run folder of the site's own, `MEMORY/runs/RUN/`: settings, the
trained state, its memory, its errors, and its ledger, in which every message is noted before it
leaves.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from confide import __version__
from confide.errors import ConfideError, GuardError, MessageError, RunError, SettingsError
from confide.federation.checkpoints import Checkpoint
from confide.federation.failures import Failure, Refusal, failure_from
from confide.federation.files import for_the_owner, inside, private_folder, write_of_run
from confide.federation.forms import limits_of
from confide.federation.guards import Guards, check_reply
from confide.federation.inprocess import Hosting, SiteSpec
from confide.federation.ledger import OPENED, Ledger
from confide.federation.messages import FieldSize, decode, encode, peek, sizes
from confide.federation.site import SiteHost, note_traceback
from confide.federation.steps import Step
from confide.flare.run.agreements import OUTSIDE, Agreements
from confide.flare.run.consenting import Asked, fewest
from confide.flare.run.joining import (
    CLOSE,
    JOIN,
    LEAVE,
    Closed,
    Join,
    Joined,
    Leave,
    Left,
    check_suited,
)
from confide.methods import method_named
from confide.runs.folder import RunFolder, memory_of
from confide.runs.gathering import Gathered, gather
from confide.runs.outcomes import own_result
from confide.runs.sitereport import Home, site_reports
from confide.settings import Settings, SiteFile, SiteTable, dump, load_site, parse
from confide.settings.tomlfile import parse_toml
from confide.userfiles import MOST_JSON, bytes_of, text_of

RUNS = "runs"
LEDGER = "ledger.jsonl"


class SiteHome:
    """The site's side of one run. `path` is that of the site's own file; `today` gives the day.

    Whatever goes wrong becomes a `Failure` without text; the traceback goes to the site's own log.
    """

    def __init__(self, path: Path, *, today: Callable[[], date] = date.today) -> None:
        self._path = path
        self._agreements = Agreements(path, today=today)
        self._read: SiteFile | None = None
        self._stamp = 0
        self._steps: dict[str, Step] = {step.name: step for step in (JOIN, LEAVE, CLOSE)}
        self._run: _Run | None = None
        self.opening: dict[str, Any] = {}
        """What the first line of a run's ledger binds; the evidence of a run says it."""

    def answer(self, step: str, round: int, data: bytes) -> bytes:
        """The encoded reply, or the encoded failure; in the site's ledger before it is given.

        Whatever is written on the way only the owner of this process can read.
        """
        with for_the_owner():
            try:
                reply = self._answer(step, round, data)
            except Exception as error:
                return self.refuse(step, round, data, error=error)
            return self._noted(step, round, data, reply)

    def refuse(self, step: str, round: int, data: bytes, *, error: Exception) -> bytes:
        """The encoded failure that an error makes of an ask; noted and logged as a reply is."""
        self.complain(step, round, error)
        return self._noted(step, round, data, encode(failure_from(error)))

    def complain(self, step: str, round: int, error: Exception) -> None:
        """Put an error into the site's own log."""
        try:
            raise error
        except Exception:
            note_traceback(self._own / "site.log", step, round)

    @property
    def book(self) -> Ledger | None:
        """The ledger of the run; None before it was joined."""
        return self._run.ledger if self._run else None

    @property
    def book_path(self) -> Path:
        """The file of that ledger, or of the refusals."""
        return self._run.folder.path / LEDGER if self._run else self._own / "refused.jsonl"

    def refusals(self) -> Ledger:
        """The ledger of what was asked before any run was joined."""
        self._own.mkdir(parents=True, exist_ok=True)
        try:
            return Ledger(self.book_path)
        except RunError:
            return Ledger.resumed(self.book_path)  # its last line was torn by a crash

    @property
    def only_compared(self) -> bool:
        """Whether the site's own file lets in only peers whose fingerprints people compared."""
        return self._file.compared

    def _noted(self, step: str, round: int, data: bytes, reply: bytes) -> bytes:
        try:
            self._note(step, round, data, reply)
        except Exception as error:  # what cannot be noted does not leave
            self.complain(step, round, error)
            return encode(failure_from(error))
        return reply

    @property
    def _file(self) -> SiteFile:
        """The site's own file, read again whenever it changed."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if self._read is None or stamp != self._stamp:
                self._read, self._stamp = load_site(self._path), stamp
        except (ConfideError, OSError) as error:
            raise Refusal("site-file") from error
        return self._read

    def _answer(self, name: str, round: int, data: bytes) -> bytes:
        if name == JOIN.name:
            return encode(self._join(_opened(Join, data)))
        if self._run is None:
            raise Refusal("not-joined")
        if name == CLOSE.name:
            return encode(Closed(self._run.ledger.lines))
        asked = self._run.asked
        found = self._agreements.agreed(self._file, asked.settings.trained_by, None)
        self._agreements.hold(found, asked)
        if name == LEAVE.name:
            return encode(self._leave(self._run, _opened(Leave, data)))
        if found.agreement.steps and name not in found.agreement.steps:
            raise Refusal("no-consent", name)
        if round > asked.settings.rounds:
            raise Refusal(OUTSIDE, "rounds")
        self._run.count(name, data, most=self._file.guards.max_rounds)
        return self._run.host.answer(name, round, data)

    def _join(self, ask: Join) -> Joined:
        """Look whether the site agreed to this, and read its text. Raises Refusal."""
        file = self._file
        if ask.version != __version__:
            raise Refusal("other-version")
        settings = parse(_plain(ask.settings))
        check_suited(settings)
        folder = _folder_of(file, ask.run)
        asked = Asked(settings, tuple(ask.sites), ask.lead, ask.run)
        agreed = self._agreements.agreed(file, settings.trained_by, ask.wire)
        if fewest(settings, ask.sites) < file.guards.min_sites:
            raise Refusal("few-sites")
        self._agreements.hold(agreed, asked)
        public = settings.public.model_copy(update={"files": ()})  # it lies at the server
        mine = settings.model_copy(
            update={"site": (_table(file),), "split": None, "public": public}
        )
        folder.check(mine, resume=folder.is_taken())  # another run's folder is not written over
        folder.close()
        self._agreements.count(agreed, asked)
        gathered = gather(mine, folder.sites, key_file=None)
        guards = Guards(**file.guards.model_dump())
        self._run = _Run(mine, folder, gathered, guards, asked=asked, opening=self.opening)
        self._steps |= self._run.steps
        folder.write("settings.toml", dump(mine))
        reply = self._joined(gathered)
        check_reply(JOIN, ask, reply)
        return reply

    def _joined(self, gathered: Gathered) -> Joined:
        facts = gathered.facts()["sites"][self._file.name]
        return Joined(
            fingerprint=self._veiled(gathered.fingerprint),
            sentences={part: facts[part] for part in ("train", "dev", "test")},
            entities=facts["entities"],
            problems=facts["problems"],
        )

    def _veiled(self, fingerprint: str) -> str:
        """The text's digest under a secret that never leaves.

        It is the same for the same text, and whoever guesses the text cannot test the guess.
        """
        path = Path(self._file.memory) / "veil.key"
        if not path.exists():
            write_of_run(path, secrets.token_hex(32).encode())
        return hmac.new(bytes_of(path), fingerprint.encode(), hashlib.sha256).hexdigest()

    def _leave(self, run: _Run, ask: Leave) -> Left:
        """Keep the trained state beside the site's memory, and look at its own errors."""
        method = method_named(run.settings.trained_by)(run.settings)
        state: Any = decode(method.State, ask.state.tobytes())
        progress = json.dumps({"best_round": ask.round})
        run.folder.store().save(
            Checkpoint(ask.round, ask.state, run.gathered.fingerprint, progress, 0), best=ask.round
        )
        spec = run.spec
        memory = memory_of(spec.folder, method.Memory) if method.personal else None
        counts = site_reports(method, [Home(spec, state, memory)])
        result = own_result(
            run.settings,
            site=spec.name,
            round=ask.round,
            data=run.gathered.facts(),
            counts=counts,
        )
        result.write(run.folder.path)
        reply = Left(kept=True)
        check_reply(LEAVE, ask, reply)
        return reply

    def _note(self, name: str, round: int, data: bytes, reply: bytes) -> None:
        """Both messages, in the ledger of the site's own; before it joins, in its folder's."""
        step = self._steps.get(name)
        if step is None:
            return  # an ask of no method that we know, and a reply that says no more than that
        ledger = self._run.ledger if self._run else self.refusals()
        failed = peek(reply)["message"] == Failure.__name__
        for message, kind, direction in (
            (data, step.ask, "down"),
            (reply, Failure if failed else step.reply, "up"),
        ):
            seen = "by the site" if direction == "down" else "one by one"
            if direction == "up" and step.summed and not failed:
                seen = "sum"
            ledger.record(
                _weighed(kind, message),
                round=round,
                step=name,
                direction=direction,
                site=self._read.name if self._read else "",
                seen=seen,
            )
        ledger.flush()

    @property
    def _own(self) -> Path:
        """The folder of what this site keeps; its kit's, while its own file cannot be read."""
        return Path(self._read.memory) if self._read else self._path.parent


class _Run:
    """What a site holds of the run that it joined."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        gathered: Gathered,
        guards: Guards,
        *,
        opening: Mapping[str, Any],
        asked: Asked,
    ) -> None:
        import torch

        torch.set_num_threads(settings.threads)
        method = method_named(settings.trained_by)
        self.settings = settings
        self.asked = asked
        self.folder = folder
        self.gathered = gathered
        self.spec: SiteSpec = replace(gathered.specs[0], guards=guards, remote=True)
        self.steps = {step.name: step for step in method.steps}
        self.ledger = Ledger.resumed(folder.path / LEDGER)
        if opening and not self.ledger.lines:
            self.ledger.note(OPENED, **opening)
        self._asked = folder.path / "asked.txt"
        self._seen = set(text_of(self._asked, MOST_JSON).split()) if self._asked.exists() else set()
        self.host: SiteHost = Hosting(
            self.steps,
            method.Memory,
            settings.seed,
            every=settings.select.every,
            last=settings.rounds,
        ).host(self.spec, {})

    def count(self, step: str, data: bytes, *, most: int) -> None:
        """Note an ask. Raises Refusal where a step was asked more than `most` other things.

        The same ask again is no other thing: it gets the same reply. Round 0 is a round as well.
        A run that is resumed may ask a round again with other weights: twice its rounds is enough.
        """
        mark = f"{step}:{hashlib.sha256(data).hexdigest()}"
        if mark in self._seen:
            return
        others = sum(one.startswith(f"{step}:") for one in self._seen)
        if others > most:
            raise Refusal("too-many-rounds")
        if others > 2 * self.settings.rounds:
            raise Refusal(OUTSIDE, "rounds")
        with open(self._asked, "a", encoding="ascii") as file:
            file.write(f"{mark}\n")
        self._seen.add(mark)


def _opened(kind: type, data: bytes) -> Any:
    try:
        return decode(kind, data, limits=limits_of(kind))
    except MessageError as error:
        raise Refusal("bad-ask") from error


def _weighed(kind: type, message: bytes) -> list[FieldSize]:
    """What the fields of a message weigh; of one that cannot be read, what it weighs itself."""
    try:
        return sizes(decode(kind, message, limits=limits_of(kind)), len(message))
    except MessageError:
        return [FieldSize("(unreadable)", "bytes", len(message), 1)]


def _plain(settings: str) -> dict[str, Any]:
    try:
        return parse_toml(settings)
    except SettingsError as error:
        raise Refusal("bad-ask") from error


def _folder_of(file: SiteFile, run: str) -> RunFolder:
    """Where this site keeps a run; beside it lies nothing that a run's name could stand for."""
    try:
        return RunFolder(inside(Path(file.memory), RUNS, run))
    except GuardError as error:
        raise Refusal("bad-ask") from error


def _table(file: SiteFile) -> SiteTable:
    """The site's part of its file as a run has it."""
    return SiteTable(**{name: getattr(file, name) for name in SiteTable.model_fields})


def check_home(file: SiteFile) -> Gathered:
    """Read a site's text as a run would, and close its memory folder to others.

    Raises ConfideError: what is wrong with the text, and where.
    """
    settings = parse({"site": [_table(file).model_dump(exclude_none=True)]})
    memory = Path(file.memory)
    try:
        private_folder(memory)
    except OSError as error:
        raise ConfideError(
            f"the site's memory folder cannot be made, or not closed to others ({error.strerror})",
            where=str(memory),
            fix="name a folder of the user that runs the site",
        ) from error
    return gather(settings, memory, key_file=None)
