"""A run without any network: asks and replies travel in files (`confide.flare.envelope`).

The server's side runs the run's code from its last checkpoint, with the replies that have come, up
to where it needs one that has not; then it writes one file for each site, and ends. Every time the
same code asks the same again, bit for bit, so each ask is found with its reply, and the ledger
holds each message once. A site's side answers a file as a site that was restarted would.

    RUN/courier/courier.json        how the run began: its order, its sites and their cards
    RUN/courier/SITE/0003.json      the asks in the third file to this site, with their seals
    RUN/courier/SITE/0003.ask       the file itself, until it is answered
    RUN/courier/SITE/0003.reply     the reply, as it came
    MEMORY/courier/RUN/             at a site: the file with which it joined, its last reply
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError

from confide import files
from confide.errors import KitError, MessageError, RunError, SettingsError, Waiting, os_errors_as
from confide.federation.events import Watcher, unwatched
from confide.federation.failures import Failure, Refusal
from confide.federation.ledger import SEAL, Ledger, read_lines
from confide.federation.messages import Pieces, encode, peek
from confide.federation.seals import AskSeal, ReplySeal, inner_digest
from confide.federation.secure.steps import GREET, MEET
from confide.federation.site import ask_in
from confide.federation.steps import Delivery, Engine
from confide.flare import joining
from confide.flare.agreements import SITE_FILE, AgreementLine, agreement_lines, proposed_agreement
from confide.flare.envelope import (
    Envelope,
    Head,
    Part,
    file_refused,
    open_envelope,
    read_file,
    read_head,
    write_envelope,
)
from confide.flare.kit import Kit, Name, open_kit
from confide.flare.peers import Card, Signer, open_signer
from confide.flare.server import Conductor, ServerEvidence, SignedEngine, code_of, server_evidence
from confide.flare.site import SignedHome, SiteHome
from confide.flare.status import read_agreements, read_site_file
from confide.methods import method_named, method_of
from confide.runs import run as runs
from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.runs.rounds import checkpointed_ledger
from confide.settings import Settings, dump, parse
from confide.settings.toml import parse_toml
from confide.version import __version__

COURIER = "courier"
"""The folder of these files, in a run's folder and in a site's memory."""
RECORD = "courier.json"
LOST, VOID = "lost", "void"
UNMET = ("not-met", "no-sum")
"""Codes of a site whose process was restarted: all sites greet anew, and sum once more."""
_ANY_ROUND = (GREET.name, MEET.name)
"""Steps whose ask holds nothing of a round: a run that goes on from a checkpoint has met its
sites."""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let no other process work in this folder. Raises RunError."""
    with files.for_the_owner():
        folder.mkdir(parents=True, exist_ok=True)
        held = files.lock(folder / "lock", needed=False)
    if held is None:
        raise RunError(
            "another process works on these files", where=str(folder), fix="wait until it has ended"
        )
    with held:
        yield


# --- The server: asks and replies as files


@dataclass
class _Sent:
    """A file to a site. `parts` are its asks: step, round, digest, seal and, if lost, why."""

    number: int
    file: str
    parts: list[dict[str, Any]]

    @property
    def mark(self) -> str:
        return f"{self.number:04d}"


@dataclass(frozen=True)
class KnownAsk:
    """An ask that was made before: the site, the number of its file, its place in it, its seal."""

    site: str
    number: int
    place: int
    seal: AskSeal
    lost: bool


class Mail:
    """The files between the server and the sites of one run, in the run's folder.

    It carries sealed asks, as NVIDIA FLARE's engine does: what is asked is put aside until `pack`
    writes it, and nothing comes back before the next pass.
    """

    def __init__(
        self, folder: Path, *, run: str, kit: Kit, place: Signer, cards: Mapping[str, Card]
    ) -> None:
        self._folder, self._run, self._kit, self._place = folder, run, kit, place
        self._cards = dict(cards)
        self.sites = tuple(sorted(cards))
        self._new: dict[str, list[Part]] = {}
        self._sent: dict[str, list[_Sent]] = {
            site: [
                _Sent(int(path.stem), **files.decode_json(files.file_text(path, files.MOST_JSON)))
                for path in sorted((folder / site).glob("[0-9]*.json"))
            ]
            for site in self.sites
        }

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes | Pieces],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        """Put the asks aside for `pack`. Raises Waiting; a site that has a file waits for it."""
        whole = {id(data): bytes(data) for data in asks.values()}
        for site, ask in asks.items():
            part = Part(step, round, whole[id(ask)], (seals or {})[site])
            self._new.setdefault(site, []).append(part)
        yield from ()
        raise Waiting(list(asks))

    def waits_for(self, site: str) -> bool:
        """Return whether a file to this site has no reply yet."""
        sent = self._sent[site]
        return bool(sent) and not self._is_over(site, sent[-1])

    def asked(self, site: str, step: str, round: int, *, ask: bytes | Pieces) -> KnownAsk | None:
        """The ask, if these bytes were asked of the site in this turn before."""
        wanted = _mark(step, round, ask)
        for sent in reversed(self._sent[site]):
            for place, one in enumerate(sent.parts):
                if one["mark"] == wanted and not one.get(VOID):
                    seal = AskSeal.decode(one["seal"].encode())
                    return KnownAsk(site, sent.number, place, seal, LOST in one)
        return None

    def reply(self, asked: KnownAsk) -> Delivery | None:
        """The reply to an ask; None if it has not come. Raises Refusal if its file was changed."""
        if asked.lost:
            failure = encode(Failure("lost", "", "", ""))
            return Delivery(asked.site, failure, 0.0, heard=False)
        path = self._path(asked.site, asked.number, "reply")
        if not path.exists():
            return None
        part = self._opened(path, asked.site).parts[asked.place]
        return Delivery(asked.site, part.data, part.seconds, part.seal)

    def _opened(self, path: Path, site: str) -> Envelope:
        return open_envelope(path, "reply", kit=self._kit, place=self._place, site=site)

    def pack(self) -> None:
        """Write the asks that were put aside, one file for each site."""
        for site, parts in sorted(self._new.items()):
            sent = self._sent[site]
            number = sent[-1].number + 1 if sent else 1
            before = self._last_reply(site)
            head = Head("ask", self._run, site, number, before)
            path = write_envelope(
                self._folder / site, head, parts, sender=self._place, to=self._cards[site]
            )
            digest = files.sha256_of(path)
            rows = [
                {"mark": _mark(one.step, one.round, one.data), "step": one.step,
                 "round": one.round, "seal": one.seal.decode("ascii")}
                for one in parts
            ]  # fmt: skip
            new = _Sent(number, digest, rows)
            path.replace(self._path(site, number, "ask"))
            self._write(site, new)
            sent.append(new)
        self._new.clear()

    def _last_reply(self, site: str) -> str:
        """The digest of the newest reply of a site; empty before the first."""
        for sent in reversed(self._sent[site]):
            path = self._path(site, sent.number, "reply")
            if path.exists():
                return files.sha256_of(path)
        return ""

    def collect(self, path: Path) -> Head:
        """Check a site's file and keep it; again if it is the very same. Raises Refusal."""
        head = read_head(path)
        if head.run != self._run or head.site not in self.sites:
            raise file_refused(path, "file-foreign", got=f"run {head.run}, site {head.site}")
        found, sent = self._opened(path, head.site), self._sent[head.site]
        own = next((one for one in sent if one.number == head.exchange), None)
        if own is None or own.file != head.before:
            raise file_refused(
                path, "file-foreign", got=f"file {head.exchange} answers another ask"
            )
        kept = self._path(head.site, own.number, "reply")
        if kept.exists() and files.sha256_of(kept) == found.digest:
            return head
        if own is not sent[-1] or self._is_over(head.site, own):
            raise file_refused(path, "file-old", got=f"file {head.exchange} of {sent[-1].number}")
        if [(one.step, one.round) for one in found.parts] != [
            (one["step"], one["round"]) for one in own.parts
        ]:
            raise file_refused(path, "file-foreign", got="it does not answer what was asked")
        files.write_of_run(kept, found.raw)
        self._path(head.site, own.number, "ask").unlink(missing_ok=True)
        return head

    def give_up(self, site: str) -> None:
        """Go on without a site's reply to its last file, as if its connection were lost."""
        if site not in self.sites or not self.waits_for(site):
            raise SettingsError(
                "nothing is waited for from this site",
                expected=", ".join(one for one in self.sites if self.waits_for(one)) or "no site",
                got=repr(site),
            )
        sent = self._sent[site][-1]
        for one in sent.parts:
            one[LOST] = True
        self._write(site, sent)

    def forget(self, *, steps: Sequence[str] = ()) -> None:
        """Ask again, from now on, where a site failed; with `steps`, all of these, of every site.

        Raises Refusal if a file was changed.
        """
        for site, every in self._sent.items():
            for sent in every:
                for place, one in enumerate(sent.parts):
                    gone = one["step"] in steps if steps else self._failed(site, sent, place)
                    if gone and not one.get(VOID):
                        one[VOID] = True
                        self._write(site, sent)

    def voided(self) -> set[tuple[str, str]]:
        """The asks that are made anew, each by its site and the digest in its seal."""
        return {
            (site, AskSeal.decode(one["seal"].encode()).digest)
            for site, every in self._sent.items()
            for sent in every
            for one in sent.parts
            if one.get(VOID)
        }

    def _failed(self, site: str, sent: _Sent, place: int) -> bool:
        path = self._path(site, sent.number, "reply")
        if not path.exists():
            return LOST in sent.parts[place]
        try:
            return peek(self._opened(path, site).parts[place].data).message == Failure.__name__
        except MessageError:
            return True

    def waiting(self) -> dict[str, Path]:
        """The file of each site that has one to answer."""
        return {
            site: self._path(site, self._sent[site][-1].number, "ask")
            for site in self.sites
            if self.waits_for(site)
        }

    def tidy(self, *, before: int | None) -> None:
        """Delete replies of rounds before a checkpoint; with None, of all: the run is over."""
        for site, every in self._sent.items():
            for sent in every[:-1] if before is not None else every:
                rounds = [one["round"] for one in sent.parts]
                if before is None or 0 < min(rounds) <= max(rounds) < before:
                    self._path(site, sent.number, "reply").unlink(missing_ok=True)
                if before is None:
                    self._path(site, sent.number, "ask").unlink(missing_ok=True)

    def _is_over(self, site: str, sent: _Sent) -> bool:
        lost = all(LOST in one or one.get(VOID) for one in sent.parts)
        replied = self._path(site, sent.number, "reply").exists()
        return lost or replied or not self._path(site, sent.number, "ask").exists()

    def _path(self, site: str, number: int, kind: str) -> Path:
        return self._folder / site / f"{number:04d}.{kind}"

    def _write(self, site: str, sent: _Sent) -> None:
        body = {"file": sent.file, "parts": sent.parts}
        files.write_of_run(
            self._path(site, sent.number, "json"), json.dumps(body, indent=1).encode()
        )


def _mark(step: str, round: int, ask: bytes | Pieces) -> str:
    """The name of an ask that a run makes again: its turn, and the digest of its bytes.

    The ask to close holds the length of the ledger, which has grown when it is made again.
    """
    digest = "" if step == joining.CLOSE.name else inner_digest(ask).hex()
    return f"{0 if step in _ANY_ROUND else round} {step} {digest}"


class CourierEngine(SignedEngine):
    """Seals what is asked for the first time; replies to the rest are checked once more."""

    def __init__(self, mail: Mail, evidence: ServerEvidence, ledger: Ledger, path: Path) -> None:
        super().__init__(mail, evidence, ledger, path)
        self._mail = mail
        lines = read_lines(path) if path.exists() else []
        seals = [line.tree for line in lines if line.tree.get("field") == SEAL]
        self._noted = {str(tree["digest"]) for tree in seals if tree["direction"] == "up"}

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes | Pieces], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every reply that has come. Raises Waiting if one is missing; new asks are put aside."""
        fresh, missing = {}, []
        for site in sorted(asks):
            asked = self._mail.asked(site, step, round, ask=asks[site])
            if asked is None:
                fresh[site] = asks[site]
                continue
            self._note_again(asked.seal, "down", len(asked.seal.encode()))
            delivery = self._mail.reply(asked)
            if delivery is None:
                missing.append(site)
                continue
            if code_of(delivery.reply) in UNMET:
                self._mail.forget(steps=_ANY_ROUND)
            yield self._checked_delivery(delivery, asked.seal)
            del delivery
        held = {site: data for site, data in fresh.items() if not self._mail.waits_for(site)}
        try:
            if held:
                yield from super().deliver(step, round, asks=held, timeout=timeout)
        except Waiting:
            missing += held
        missing += fresh.keys() - held.keys()
        if missing:
            self._ledger.flush()
            raise Waiting(missing)

    def _note_reply(self, seal: ReplySeal, weight: int) -> None:
        if seal.digest in self._noted:
            self._note_again(seal, "up", weight)
        else:
            super()._note_reply(seal, weight)

    def _note_again(self, seal: AskSeal | ReplySeal, direction: str, weight: int) -> None:
        facts = {"round": seal.round, "step": seal.step, "direction": direction, "site": seal.site}
        self._ledger.seal_again(weight, facts)


class CourierConductor(Conductor):
    """Conducts a run whose messages are files, as far as the replies go that have come."""

    repeats: ClassVar[bool] = True

    def opened(self, folder: RunFolder, name: str) -> tuple[Ledger, Engine]:
        """The ledger, in which each message stands once, and the engine that finds replies."""
        path = runs.ledger_path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        assert self.evidence is not None and isinstance(self.engine, Mail), "files are signed"
        _, length = checkpointed_ledger(folder.store(name))
        always = joining.JOIN.name, *_ANY_ROUND
        ledger = Ledger.replayed(path, length=length, always=always, without=self.engine.voided())
        return ledger, CourierEngine(self.engine, self.evidence, ledger, path)


@dataclass(frozen=True)
class Record:
    """The beginning of a run: the server's `kit`, the packed order (`lead`), the sites' `cards`."""

    run: Name
    kit: str
    settings: str
    version: str
    lead: str
    cards: Annotated[dict[Name, str], Field(min_length=1)]


@dataclass(frozen=True)
class Standing:
    """Where a run is: the sites it waits for and their files, or its result."""

    run: str
    folder: Path
    waiting: dict[str, Path]
    result: Result | None = None


@files.for_the_owner()
def begin(
    out: Path,
    settings: str | Path,
    *,
    kit: Path,
    lead: Path,
    cards: Sequence[Path],
    overrides: Sequence[str] = (),
) -> None:
    """Order a run over these sites, in a new folder; nothing is asked yet.

    `kit` is the server's and `lead` the lead's; `cards` are the sites' (`identity/card.json` in
    their kits). Raises SettingsError, KitError, RunError, KeyFileError, Refusal.
    """
    chosen, name = joining.read_for_sites(settings, overrides)
    if (out / COURIER / RECORD).exists() or RunFolder(out).is_taken():
        raise RunError(
            "there is already a run in this folder",
            where=str(out),
            fix="leave --settings out to go on with it, or choose another folder",
        )
    server, place = open_kit(kit, "server"), open_signer(open_kit(kit, "server"), make=True)
    held = {card.name: card for card in (_card_in(path, place) for path in cards)}
    if len(held) != len(cards) or not cards:
        raise SettingsError(
            "each site gives its card once" if cards else "no card of a site is given",
            fix="take identity/card.json of each site's kit, and give them with --card",
        )
    _check_carried(chosen, len(held))
    method_of(chosen)(chosen)  # raises if the method and these settings do not go together
    order = joining.Order.signed_by(
        open_signer(open_kit(lead, "lead"), make=True),
        joining.new_run_name(chosen, name),
        chosen,
        sites=sorted(held),
        version=__version__,
    )
    record = Record(
        order.run, str(server.path), dump(chosen), __version__, order.pack().encode().hex(),
        {name: card.encode() for name, card in sorted(held.items())},
    )  # fmt: skip
    files.private_folder(out)
    body = json.dumps(dataclasses.asdict(record), indent=1).encode()
    files.write_of_run(out / COURIER / RECORD, body)


def _card_in(path: Path, place: Signer) -> Card:
    """A site's card, which the server pins now unless it has. Raises KitError, Refusal."""
    try:
        card = Card.decode(files.file_text(path))
    except (OSError, ValueError, Refusal) as error:
        raise KitError(
            "this is not a site's card", where=str(path), expected="identity/card.json of its kit"
        ) from error
    place.meet(card, "site", files.plain_name(card.name, "a site"))
    return card


def _check_carried(settings: Settings, sites: int) -> None:
    """Raise SettingsError for settings under which files would carry what they cannot."""
    if settings.sharing.down != "whole":
        raise SettingsError(
            "federation.down: a site's process ends between two files, and has no weights to add"
            " a difference to",
            expected="'whole'",
            got=repr(settings.sharing.down),
            fix="leave it out",
        )
    if joining.masks_unless_told(settings, sites):
        raise SettingsError(
            "the settings do not say how replies are summed; under masks each sum takes four"
            " exchanges of files, and a site's process must stay between them (--watch)",
            expected='federation.sums = "plain" or "masked"',
            fix="add it, such as --set federation.sums=plain: the server then reads each reply",
        )


def go_on(
    out: Path,
    arrived: Sequence[Path] = (),
    *,
    again: bool = False,
    without: Sequence[str] = (),
    on_event: Watcher | None = None,
) -> Standing:
    """Take in the files that have arrived, and run as far as the replies go.

    `again`: ask once more where sites failed. `without`: sites whose reply to their last file is
    not waited for. Raises Refusal for a file that cannot be used, FederationError, RunError.
    """
    begun_in(out)
    with _alone(out / COURIER):
        record, kit, mail = _mail_of(out)
        for path in arrived:
            mail.collect(path)
        for site in without:
            mail.give_up(site)
        if again:
            mail.forget()
        if RunFolder(out).is_finished():
            return Standing(record.run, out, {}, RunFolder(out).result())
        given = {"run": record.run, "settings": record.settings, "version": record.version}
        conductor = CourierConductor(
            record.run,
            record.settings,
            version=record.version,
            engine=mail,
            folder=out,
            public=kit.path / "public",
            evidence=server_evidence(kit, record.lead, sites=mail.sites, **given),
        )
        result = None
        try:
            result = conductor.conduct(on_event or unwatched)
        except Waiting:
            with files.for_the_owner():
                mail.pack()
        stores = [RunFolder(out).store(name) for name in ("", *mail.sites)]
        rounds = [store.rounds()[-1] for store in stores if store.rounds()]
        mail.tidy(before=None if result else min(rounds, default=0))
        return Standing(record.run, out, mail.waiting(), result)


def take_in(out: Path, path: Path) -> None:
    """Check a site's file and keep it, and do no more. Raises Refusal, RunError."""
    with _alone(out / COURIER), files.for_the_owner():
        _mail_of(out)[2].collect(path)


def _mail_of(out: Path) -> tuple[Record, Kit, Mail]:
    record = begun_in(out)
    kit = open_kit(Path(record.kit), "server")
    cards = {site: Card.decode(text) for site, text in record.cards.items()}
    mail = Mail(out / COURIER, run=record.run, kit=kit, place=open_signer(kit), cards=cards)
    return record, kit, mail


def begun_in(out: Path) -> Record:
    """The record of the run in a folder. Raises RunError."""
    try:
        held = files.decode_json(files.file_text(out / COURIER / RECORD, files.MOST_JSON))
        return TypeAdapter(Record).validate_python(held)
    except (OSError, ValueError, ValidationError) as error:
        raise RunError(
            "there is no run by courier in this folder",
            where=str(out),
            fix="begin one with `confide courier pack RUN --settings SETTINGS --kit KIT`",
        ) from error


def copy_to(now: Standing, folder: Path) -> list[Path]:
    """Copy the files of the sites that are waited for, under the names with which they travel.

    Older files of the run to its sites are deleted there.
    """
    found = {
        folder / f"{now.run}.{site}.{path.stem}.ask": path
        for site, path in sorted(now.waiting.items())
    }
    for target, path in found.items():
        _copy(path, target)
    for old in folder.glob(f"{now.run}.*.ask"):
        if old not in found and files.is_regular(old):
            old.unlink()
    return list(found)


def _copy(path: Path, target: Path) -> None:
    """Copy a file, unless it is there: who watches the folder would look at it again.

    A link in its place is replaced, not followed.
    """
    data = read_file(path)
    if not (files.is_regular(target) and files.sha256_of(target) == sha256(data).hexdigest()):
        with os_errors_as(RunError, "a file could not be written", where=target):
            files.write_atomically(target, data)


def new_files(folder: Path, pattern: str, *, every: float) -> Iterator[list[Path]]:
    """The files in a folder that are new or have changed, again and again; links are passed over.

    A file that was still being copied comes again.
    """
    seen: dict[Path, tuple[int, ...]] = {}
    while True:
        there = {
            path: files.stamp_of(path) for path in folder.glob(pattern) if files.is_regular(path)
        }
        new = sorted(path for path, stamp in there.items() if seen.get(path) != stamp)
        seen = there
        yield new
        time.sleep(every)


# --- A site: it answers one file with one file


@dataclass(frozen=True)
class Question:
    """The question that a file (its digest) puts to a site: steps with their rounds.

    `lines` is the agreement that the site has beside the one that the run needs, if the file asks
    the site to join; `settings` are those of the run that are not the defaults, line by line.
    """

    head: Head
    file: str
    steps: tuple[tuple[str, int], ...]
    settings: tuple[str, ...] = ()
    method: str = ""
    lead: str = ""
    sites: tuple[str, ...] = ()
    lines: tuple[AgreementLine, ...] = ()


def _beside_defaults(tree: files.Tree, plain: files.Tree, *, at: str = "") -> Iterator[str]:
    """The settings with other values than the defaults, each as `table.key = value`."""
    for name, value in tree.items():
        if isinstance(value, dict):
            below = plain.get(name)
            usual = below if isinstance(below, dict) else {}
            yield from _beside_defaults(value, usual, at=f"{at}{name}.")
        elif name not in plain or plain[name] != value:
            yield f"{at}{name} = {value!r}"


class CourierSite:
    """Answers files at a site.

    What a sum under masks needs lives in this object, never on the disk: only one that `stays`
    between the files of a run begins one.
    """

    def __init__(self, kit: Path, *, stays: bool = False) -> None:
        self._stays = stays
        self._kit = open_kit(kit, "site")
        self._place = open_signer(self._kit)
        self._homes: dict[str, tuple[int, SignedHome]] = {}

    @property
    def name(self) -> str:
        """The site's name."""
        return self._place.name

    def question(self, path: Path) -> Question:
        """Show what a file asks beside what was agreed; nothing is done. Raises Refusal."""
        found = self._open(path)
        steps = tuple((one.step, one.round) for one in found.parts)
        asked = Question(found.head, found.digest, steps)
        first = found.parts[0]
        if first.step != joining.JOIN.name:
            return asked
        join = ask_in(joining.Join, first.data)
        settings = parse(parse_toml(join.settings))
        method = method_named(settings.trained_by).name
        held = read_agreements(self._kit).get(method)
        lines: list[AgreementLine] = []
        if held is not None:
            needed = proposed_agreement(settings, held.agreement)
            lines = agreement_lines(held.agreement, needed)
        names, plain = ("task", "method", "base"), Settings()
        chosen = {name: getattr(settings, name) for name in names}
        usual = parse({**chosen, "model": {"kind": settings.model.kind}})
        usual = usual.model_copy(update={name: getattr(plain, name) for name in names})
        return dataclasses.replace(
            asked,
            settings=tuple(_beside_defaults(parse_toml(join.settings), parse_toml(dump(usual)))),
            method=method,
            lead=join.lead,
            sites=tuple(join.sites),
            lines=tuple(lines),
        )

    def answer(self, path: Path, *, to: Path, seen: Question | None = None) -> Path:
        """Do what a file asks, and write the reply's file into `to`; its path.

        The very same file gets the very same reply. It has to be the one that a person has `seen`,
        if any has. Raises Refusal with a code, KitError, RunError,
        and what is wrong with the site's own files if it cannot go on with the run.
        """
        found = self._open(path)
        if seen is not None and seen.file != found.digest:
            raise file_refused(path, "file-foreign", got="it is another than was shown")
        head = found.head
        memory = Path(read_site_file(self._kit).memory)
        folder = files.path_inside(memory, COURIER, head.run)
        with _alone(folder), files.for_the_owner():
            kept = self._kept_answer(found, path, folder)
        target = to / dataclasses.replace(head, kind="reply").file_name
        _copy(kept, target)
        return target

    def _kept_answer(self, found: Envelope, path: Path, folder: Path) -> Path:
        """The reply's file in the site's own folder; made now unless it is there."""
        head, state = found.head, _State.read(folder)
        kept = folder / f"{head.exchange:04d}.reply"
        if found.digest == state.ask and kept.exists():
            return kept
        if head.exchange <= state.exchange:
            why = f"file {head.exchange}; the last one answered is {state.exchange}"
            raise file_refused(path, "file-old", got=why)
        if head.before and head.before not in state.replies:
            raise file_refused(path, "file-early", got=f"file {head.exchange}")
        if not self._stays and any(one.step == GREET.name for one in found.parts):
            raise SettingsError(
                "sums under masks need a process that stays between files: its keys are never"
                " on the disk",
                where=str(path),
                fix="answer this run with `confide courier answer --watch FOLDER`",
            )
        joins = found.parts[0].step == joining.JOIN.name
        home = self._home(head.run, state, None if joins else folder / "joined.ask")
        home.joins = joins
        parts = [self._answered(home, one) for one in found.parts]
        if home.joins and peek(parts[0].data).message != Failure.__name__:
            files.write_of_run(folder / "joined.ask", found.raw)
        home.joins = False
        server = Card.decode(head.card)
        reply = Head("reply", head.run, head.site, head.exchange, found.digest)
        made = write_envelope(folder, reply, parts, sender=self._place, to=server)
        made.replace(kept)
        replies = [*state.replies, files.sha256_of(kept)]
        _State(head.exchange, found.digest, replies).write(folder)
        self._homes[head.run] = head.exchange, home
        for old in folder.glob("[0-9]*.reply"):
            if old != kept:
                old.unlink()
        return kept

    def _open(self, path: Path) -> Envelope:
        compared = read_site_file(self._kit).compared
        return open_envelope(path, "ask", kit=self._kit, place=self._place, only_compared=compared)

    def _home(self, run: str, state: _State, joined: Path | None) -> SignedHome:
        """The site's part of the run, as this process or an earlier one left it.

        `joined` is the file with which an earlier one joined; None if the site is asked to join.
        """
        exchange, home = self._homes.get(run, (-1, None))
        if home is not None and exchange == state.exchange:
            return home
        home = SignedHome(SiteHome(self._kit.path / "local" / SITE_FILE), self._place)
        if joined is not None and joined.exists():
            first = self._open(joined).parts[0]
            home.rejoin(first.data, seal=first.seal)
        return home

    def _answered(self, home: SignedHome, asked: Part) -> Part:
        start = time.perf_counter()
        data, seal = home.answer(asked.step, asked.round, asked.data, seal=asked.seal)
        return Part(asked.step, asked.round, data, seal, time.perf_counter() - start)


@dataclass(frozen=True)
class _State:
    """The last file that a site answered, and the digests of all its replies of the run."""

    exchange: int
    ask: str
    replies: list[str]

    @staticmethod
    def read(folder: Path) -> _State:
        path = folder / "state.json"
        if not path.exists():
            return _State(0, "", [])
        try:
            held = files.decode_json(files.file_text(path, files.MOST_JSON))
            return TypeAdapter(_State).validate_python(held)
        except (OSError, ValueError) as error:
            raise RunError(
                "the record of answered files is damaged",
                where=str(path),
                fix="restore it from a backup; without it nobody can tell old files from new ones",
            ) from error

    def write(self, folder: Path) -> None:
        body = json.dumps(dataclasses.asdict(self)).encode()
        files.write_of_run(folder / "state.json", body)
