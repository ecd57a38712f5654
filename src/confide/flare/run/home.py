"""A real site during a run: its own file, its consent, its text, its folder; bytes in, bytes out.

A run leaves a run folder of the site's own, `MEMORY/runs/RUN/`, with the settings, the trained
state, the site's memory and errors, and its ledger, in which every message is noted before it
leaves.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

from confide import __version__
from confide.errors import (
    ConfideError,
    GuardError,
    MessageError,
    RunError,
    SettingsError,
    os_errors_as,
)
from confide.federation.checkpoints import Checkpoint, as_array
from confide.federation.failures import Failure, Refusal, failure_from
from confide.federation.files import for_the_owner, inside, private_folder, write_of_run
from confide.federation.forms import limits_of
from confide.federation.guards import Guards, check_open, check_reply
from confide.federation.inprocess import Hosting, SiteSpec, SumsWith
from confide.federation.ledger import OPENED, Ledger
from confide.federation.messages import FieldSize, decode, encode, peek, sizes
from confide.federation.secure.exchanges import EXCHANGES, as_asked
from confide.federation.secure.member import Member
from confide.federation.secure.roster import colluders
from confide.federation.site import SiteHost, ask_in, note_traceback
from confide.federation.steps import Step
from confide.flare.kits.peers import Place
from confide.flare.run.agreements import OUTSIDE, Agreements
from confide.flare.run.computing import compute_as, own_computing
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
    check_guards,
    check_suited,
    state_in,
)
from confide.flare.run.peering import member_of
from confide.methods import Expecting, answered_in, method_named
from confide.privacy.purse import PURSE
from confide.runs.folder import RUNS, RunFolder, memory_of
from confide.runs.gathering import Gathered, gather
from confide.runs.outcomes import own_result, sums_of, up_of
from confide.runs.sitereport import Home, site_reports
from confide.scoring.calibration import Calibrator
from confide.settings import Settings, SiteFile, SiteTable, dump, load_site, parse
from confide.settings.tomlfile import parse_toml
from confide.userfiles import MOST_JSON, Tree, bytes_of, text_of

LEDGER = "ledger.jsonl"
UNKNOWN = "(unknown step)"
"""What a ledger calls a step that this place does not know, whatever it was called."""


class SiteHome:
    """The site's side of one run. `path` is the site's own file; `today` gives the day.

    Whatever goes wrong becomes a `Failure` without text; the traceback goes to the site's own log.
    """

    def __init__(self, path: Path, *, today: Callable[[], date] = date.today) -> None:
        self._path = path
        self._agreements = Agreements(path, today=today)
        self._read: SiteFile | None = None
        self._stamp = 0
        self._steps: dict[str, Step] = {step.name: step for step in (JOIN, LEAVE, CLOSE)}
        self._run: _Run | None = None
        self.opening: Tree = {}
        """The facts in the first line of a run's ledger; set from the evidence of the run."""
        self.place: Place | None = None
        """The site's identity and pins, with which it takes part in secure sums."""

    def answer(self, step: str, round: int, data: bytes) -> bytes:
        """The encoded reply or failure; it is in the site's ledger before it is returned.

        Only the owner of this process can read the files written on the way.
        """
        with for_the_owner():
            try:
                reply = self._answer(step, round, data)
            except Exception as error:
                return self.refuse(step, round, data, error=error)
            return self._noted(step, round, data, reply)

    def refuse(self, step: str, round: int, data: bytes, *, error: Exception) -> bytes:
        """The encoded failure for an error, logged, and noted in the ledger as a reply is."""
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
        """The ledger of the run; None before the site has joined one."""
        return self._run.ledger if self._run else None

    @property
    def book_path(self) -> Path:
        """The file of that ledger, or of `refusals`."""
        return self._run.folder.path / LEDGER if self._run else self._own / "refused.jsonl"

    def refusals(self) -> Ledger:
        """The ledger of asks that came before the site joined a run."""
        self._own.mkdir(parents=True, exist_ok=True)
        try:
            return Ledger(self.book_path)
        except RunError:
            return Ledger.resumed(self.book_path)  # its last line was torn by a crash

    @property
    def only_compared(self) -> bool:
        """Whether the site deals only with peers whose fingerprints people have compared."""
        return self._file.compared

    def _noted(self, step: str, round: int, data: bytes, reply: bytes) -> bytes:
        try:
            self._note(step, round, data, reply)
        except Exception as error:  # a reply that cannot be noted does not leave
            self.complain(step, round, error)
            return encode(failure_from(error))
        return reply

    @property
    def _file(self) -> SiteFile:
        """The site's own file, read again whenever it changed. Raises Refusal."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if self._read is None or stamp != self._stamp:
                self._read, self._stamp = load_site(self._path), stamp
        except (ConfideError, OSError) as error:
            raise Refusal("site-file") from error
        return self._read

    def _answer(self, name: str, round: int, data: bytes) -> bytes:
        if name == JOIN.name:
            return encode(self._join(ask_in(Join, data)))
        if self._run is None:
            raise Refusal("not-joined")
        if name == CLOSE.name:
            return encode(Closed(self._run.ledger.lines))
        asked = self._run.asked
        found = self._agreements.agreed(self._file, asked.settings.trained_by, None)
        self._agreements.hold(found, asked)
        if name == LEAVE.name:
            return encode(self._leave(self._run, ask_in(Leave, data)))
        if name in EXCHANGES:  # they carry nothing but what an agreed step has opened
            return self._run.host.answer(name, round, data)
        if name not in self._run.steps:
            raise Refusal("unknown-step")
        if found.agreement.steps and name not in found.agreement.steps:
            raise Refusal("no-consent", name)
        if round > asked.settings.rounds:
            raise Refusal(OUTSIDE, "rounds")
        self._run.count(name, data, most=self._file.guards.max_rounds)
        return self._run.host.answer(name, round, data)

    def _join(self, ask: Join) -> Joined:
        """Check that the site agreed to this run, and read its text. Raises Refusal."""
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
        usual = colluders(len(set(ask.sites)))
        if (settings.federation.colluding or usual) < (file.colluding or usual):
            raise Refusal(OUTSIDE, "federation.colluding")
        self._agreements.hold(agreed, asked)
        if file.guards.masked and sums_of(settings) != "masked":
            raise Refusal("only-masked")
        guards = Guards(**file.guards.model_dump())
        check_guards(settings, guards)
        public = settings.public.model_copy(update={"files": ()})  # it lies at the server
        mine = settings.model_copy(
            update={"site": (_table(file),), "split": None, "public": public, **own_computing(file)}
        )
        folder.check(mine, resume=folder.is_taken())  # another run's folder is not written over
        folder.close()
        self._agreements.count(agreed, asked)
        gathered = gather(mine, folder.sites, key_file=None)
        member = None
        if sums_of(settings) != "plain":
            member = member_of(self.place, file, ask, agreement=agreed.agreement, settings=settings)
        self._run = _Run(
            mine, folder, gathered, guards, asked=asked, opening=self.opening,
            purse=Path(file.memory) / PURSE, member=member,
        )  # fmt: skip
        self._steps |= self._run.steps
        folder.write("settings.toml", dump(mine))
        reply = self._joined(gathered)
        check_reply(JOIN, ask, reply)
        check_open(reply, guards)
        return reply

    def _joined(self, gathered: Gathered) -> Joined:
        if self._run is not None and self._run.host.site.member is not None:
            return Joined(
                fingerprint=self._veiled(gathered.fingerprint),
                sentences=dict.fromkeys(("train", "dev", "test"), 0),
                entities={},
                problems={},
            )
        facts = gathered.facts()["sites"][self._file.name]
        return Joined(
            fingerprint=self._veiled(gathered.fingerprint),
            sentences={part: facts[part] for part in ("train", "dev", "test")},
            entities=facts["entities"],
            problems=facts["problems"],
        )

    def _veiled(self, fingerprint: str) -> str:
        """The text's digest under a secret that never leaves.

        It is the same for the same text, but nobody can use it to test a guess at the text.
        """
        path = Path(self._file.memory) / "veil.key"
        if not path.exists():
            write_of_run(path, secrets.token_hex(32).encode())
        return hmac.new(bytes_of(path), fingerprint.encode(), hashlib.sha256).hexdigest()

    def _leave(self, run: _Run, ask: Leave) -> Left:
        """Keep the trained state beside the site's memory, and count the site's own errors."""
        calibrator = Calibrator(ask.temperature, ask.offset, ask.finds)
        if not calibrator.is_sound:
            raise Refusal("bad-ask")
        method = method_named(run.settings.trained_by)(run.settings)
        state = state_in(run.host.site.whole(ask), method.State)
        progress, encoded = json.dumps({"best_round": ask.round}), as_array(encode(state))
        run.folder.store().save(
            Checkpoint(ask.round, encoded, run.gathered.fingerprint, progress, 0), best=ask.round
        )
        run.host.site.forget()
        spec = run.spec
        memory = memory_of(spec.folder, method.Memory) if method.personal else None
        counts = site_reports(method, [Home(spec, state, memory)])
        result = own_result(
            run.settings,
            site=spec.name,
            round=ask.round,
            data=run.gathered.facts(),
            counts=counts,
            calibrator=calibrator,
        )
        result.write(run.folder.path)
        reply = Left(kept=True)
        check_reply(LEAVE, ask, reply)
        return reply

    def _note(self, name: str, round: int, data: bytes, reply: bytes) -> None:
        """Note both messages in the ledger of the run, or of refusals before the site joins.

        Of a step that is unknown here, each is a line: whoever asks for many fills no more.
        """
        step = EXCHANGES.get(name) or self._steps.get(name)
        if step is not None and self._run is not None:
            step = as_asked(step, sums_of(self._run.settings))
        ledger = self._run.ledger if self._run else self.refusals()
        failed = peek(reply)["message"] == Failure.__name__
        for message, kind, direction in (
            (data, step.ask if step else None, "down"),
            (reply, None if step is None else Failure if failed else step.reply, "up"),
        ):
            seen = "by the site" if direction == "down" else "one by one"
            if step and direction == "up" and not failed:
                seen = step.seen_as
            ledger.record(
                _weighed(kind, message),
                round=round,
                step=name if step else UNKNOWN,
                direction=direction,
                site=self._read.name if self._read else "",
                seen=seen,
            )
        ledger.flush()

    @property
    def _own(self) -> Path:
        """The folder that this site keeps; its kit's, if its own file cannot be read."""
        return Path(self._read.memory) if self._read else self._path.parent


class _Run:
    """A site's part of the run that it joined."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        gathered: Gathered,
        guards: Guards,
        *,
        opening: Tree,
        asked: Asked,
        purse: Path,
        member: Member | None = None,
    ) -> None:
        compute_as(settings)
        method = method_named(settings.trained_by)
        self.settings = settings
        self.asked = asked
        self.folder = folder
        self.gathered = gathered
        self.spec: SiteSpec = replace(gathered.specs[0], guards=guards, remote=True)
        self.steps = answered_in(settings)
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
            sums=SumsWith(sums_of(settings)),
            up=up_of(settings),
            top=settings.federation.top,
            expects=Expecting(settings),
        ).host(self.spec, {}, member=member, purse=purse)

    def count(self, step: str, data: bytes, *, most: int) -> None:
        """Note an ask. Raises Refusal after more than `most` different asks of one step.

        The same ask again does not count: it gets the same reply. Round 0 counts as a round. A
        resumed run may ask a round again with other weights, so twice its rounds are allowed.
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


def _weighed(kind: type | None, message: bytes) -> list[FieldSize]:
    """The sizes of a message's fields; of one that cannot be read, or of no step, its own."""
    try:
        if kind is None:
            raise MessageError("no step has such an ask")
        return sizes(decode(kind, message, limits=limits_of(kind)), len(message))
    except MessageError:
        return [FieldSize("(unreadable)", "bytes", len(message), 1)]


def _plain(settings: str) -> Tree:
    try:
        return parse_toml(settings)
    except SettingsError as error:
        raise Refusal("bad-ask") from error


def _folder_of(file: SiteFile, run: str) -> RunFolder:
    """The folder in which this site keeps a run. Raises Refusal if the run's name is unsafe."""
    try:
        return RunFolder(inside(Path(file.memory), RUNS, run))
    except GuardError as error:
        raise Refusal("bad-ask") from error


def _table(file: SiteFile) -> SiteTable:
    """The part of a site's own file that a run's settings hold."""
    return SiteTable(**{name: getattr(file, name) for name in SiteTable.model_fields})


def check_home(file: SiteFile) -> Gathered:
    """Read a site's text as a run would, and make its memory folder, closed to others.

    Raises ConfideError, which says what is wrong with the text or the folder, and where.
    """
    settings = parse({"site": [_table(file).model_dump(exclude_none=True)]})
    memory = Path(file.memory)
    with os_errors_as(
        ConfideError,
        "the site's memory folder cannot be made or closed to others",
        where=memory,
        fix="name a folder that belongs to the user that runs the site",
    ):
        private_folder(memory)
    return gather(settings, memory, key_file=None)
