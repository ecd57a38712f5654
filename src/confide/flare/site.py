"""A real site during a run: its own file, its consent, its text, its folder; bytes in, bytes out.

A run leaves a run folder of the site's own, `MEMORY/runs/RUN/`, with the settings, the trained
state, the site's memory and errors, and its ledger, in which every message is noted before it
leaves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from confide import files
from confide.errors import ConfideError, GuardError, MessageError, RunError, SettingsError
from confide.federation import seals
from confide.federation.failures import Failure, Refusal, failure_from
from confide.federation.guards import Guards, check_open, check_reply
from confide.federation.ledger import MET, OPENED, SEAL, Ledger, read_lines
from confide.federation.memory import Checkpoint, as_array
from confide.federation.messages import FieldSize, decode, encode, limits_of, peek, sizes
from confide.federation.replies import REPLIES, KeptReplies
from confide.federation.secure.messages import Meet, colluders
from confide.federation.secure.site import SUMS, Member, Sets
from confide.federation.secure.steps import EXCHANGES, as_asked
from confide.federation.site import SiteHost, ask_in, note_traceback
from confide.federation.steps import Step
from confide.flare import joining
from confide.flare.agreements import OUTSIDE, Agreements, RunTerms, fewest_in_sum
from confide.flare.kit import SERVER
from confide.flare.peers import Card, Signer
from confide.methods import answered_in, method_named
from confide.privacy.accountant import PRIVACY
from confide.runs.folder import RUNS, RunFolder, memory_of
from confide.runs.run import Home, hosting_of, own_result, site_reports, sums_of
from confide.runs.sites import Gathered, gather
from confide.scoring.calibration import Calibrator
from confide.settings import Settings, SiteFile, SiteTable, dump, load_site, parse
from confide.settings.sitefile import Agreement
from confide.settings.toml import parse_toml
from confide.training.devices import compute_at, place_of
from confide.version import __version__

# --- Peers of a site in secure sums
#
# A site knows their cards, and earlier rosters.
#
# Each site's identity key is pinned when it is first met, as the server's and the lead's are; a
# site whose file says `compared` sums only with sites whose fingerprints people have compared.
# Sums over two sets of sites that differ by few sites tell of these few, so a roster close to an
# earlier one is refused until the site's agreement names exactly these sites.


ROSTERS, ACCOUNTS = "rosters.txt", "accounts.json"
_ACCOUNT = re.compile(r"([1-9][0-9]{0,14}) ([0-9a-f]{64})", re.ASCII)


def note_accounts(folder: Path, accounts: Mapping[str, str], names: Sequence[str]) -> None:
    """Remember the last known state of each peer's account of noise, by identity.

    An account that was put back from a backup has fewer charges than its peers have seen, or as
    many and another digest. What such a site spends again is counted nowhere, so nobody sums with
    it: raises Refusal for an account that is older than before, or malformed.
    """
    path = folder / ACCOUNTS
    before: dict[str, str] = files.decode_json(files.file_text(path)) if path.exists() else {}
    for name, (identity, account) in zip(names, accounts.items(), strict=True):
        old, new = _charges(before.get(identity, ""), name), _charges(account, name)
        if new[0] < old[0] or (new[0] == old[0] and new != old):
            raise Refusal("older-account", name)
    now = before | {identity: account for identity, account in accounts.items() if account}
    if now != before:
        files.write_of_run(path, json.dumps(now, sort_keys=True).encode())


def _charges(account: str, name: str) -> tuple[int, str]:
    """The charges and the digest of an account. Raises Refusal if it is malformed."""
    if not account:
        return 0, ""
    found = _ACCOUNT.fullmatch(account)
    if found is None:
        raise Refusal("bad-greeting", name)
    return int(found[1]), found[2]


@dataclass(frozen=True)
class Peering:
    """Checks the sites of one run.

    Attributes:
        place: the site's own identity, and the keys that it has pinned.
        sites: the sites of the run, as it joined it.
        only_compared: whether their fingerprints must have been compared.
        folder: where rosters of all runs are noted.
        apart: rosters that differ by fewer sites are too close to each other.
        named: whether the site's agreement names exactly these sites.
    """

    place: Signer
    sites: tuple[str, ...]
    only_compared: bool
    folder: Path
    apart: int
    named: bool

    def check(self, ask: Meet) -> None:
        """Raise Refusal unless these are the run's sites, with keys that the site has pinned."""
        if ask.names != sorted(set(self.sites)):
            raise Refusal("other-roster", "sites")
        for name, identity, text in zip(ask.names, ask.identities, ask.cards, strict=True):
            card = Card.decode(text)
            if card.key != identity:
                raise Refusal("uncertified", name)
            if name == self.place.name:
                if card.public != self.place.identity.public:
                    raise Refusal("other-identity", name)
                continue
            self.place.meet(card, "site", name, only_compared=self.only_compared)
        self._note(dict(zip(ask.names, ask.identities, strict=True)))
        accounts = dict(zip(ask.identities, ask.accounts, strict=True))
        note_accounts(self.folder, accounts, ask.names)

    def _note(self, roster: dict[str, str]) -> None:
        """Note the roster. Raises Refusal if it is too close to an earlier one."""
        path = self.folder / ROSTERS
        before = files.file_text(path).splitlines() if path.exists() else []
        said = " ".join(sorted(roster.values()))
        if said in before:
            return
        now = set(roster.values())
        if not self.named and any(len(now ^ set(one.split())) < self.apart for one in before):
            raise Refusal("near-roster")
        files.write_of_run(path, "\n".join([*before, said, ""]).encode())


def member_of(
    place: Signer | None,
    file: SiteFile,
    ask: joining.Join,
    *,
    agreement: Agreement,
    settings: Settings,
) -> Member:
    """A site's part in the secure sums of a run. Raises Refusal if it has no identity.

    No sum is of fewer sites than its guard `min_sites` and its agreement's `at_least` say.
    """
    if place is None:
        raise Refusal("uncertified", file.name)
    sites, folder = tuple(sorted(set(ask.sites))), Path(file.memory) / SUMS
    peering = Peering(
        place,
        sites,
        file.compared,
        folder,
        apart=file.guards.min_sites,
        named=not agreement.others and set(agreement.sites) == set(sites),
    )
    return Member(
        file.name,
        place.identity.key,
        vet=peering.check,
        colluding=file.colluding or colluders(len(sites)),
        least=max(file.guards.min_sites, agreement.at_least),
        binding=seals.digest(b"received", ask.settings.encode(), ask.wire.encode()),
        record=Sets(folder),
        run=ask.run,
        card=place.card.encode(),
        group=settings.federation.groups,
    )


# --- Devices of a real site
#
# It computes as its own file says, whatever the run's settings say.


def own_computing(file: SiteFile) -> files.Tree:
    """Read the devices that a site's own file names in place of the run's settings."""
    own = {name: getattr(file, name) for name in ("device", "precision", "micro_batch_size")}
    return {**own, "devices": None}


def compute_as(settings: Settings) -> None:
    """Let this process compute so. Raises Refusal if this machine has no such device."""
    torch.set_num_threads(settings.threads)
    try:
        compute_at(
            place_of(
                settings.device, settings.precision, micro_batch_size=settings.micro_batch_size
            )
        )
    except SettingsError as error:
        raise Refusal("device-missing") from error


LEDGER = "ledger.jsonl"
UNKNOWN = "(unknown step)"
"""The ledger's name for a step that this place does not know, whatever it was called."""


class SiteHome:
    """The site's side of one run. `path` is the site's own file; `today` gives the day.

    Whatever goes wrong becomes a `Failure` without text; the traceback goes to the site's own log.
    """

    def __init__(self, path: Path, *, today: Callable[[], date] = date.today) -> None:
        self._path = path
        self._agreements = Agreements(path, today=today)
        self._read: SiteFile | None = None
        self._steps: dict[str, Step] = {
            step.name: step for step in (joining.JOIN, joining.LEAVE, joining.CLOSE)
        }
        self._run: _Run | None = None
        self.opening: files.Tree = {}
        """The facts in the first line of a run's ledger; set from the evidence of the run."""
        self.place: Signer | None = None
        """The site's identity and pins, with which it takes part in secure sums."""

    def answer(self, step: str, round: int, data: bytes) -> bytes:
        """The encoded reply or failure; it is in the site's ledger before it is returned.

        Only the owner of this process can read the files written on the way.
        """
        with files.for_the_owner():
            try:
                reply = self._answer(step, round, data)
            except Exception as error:
                return self.refuse(step, round, data, error=error)
            return self._noted(step, round, data, reply)

    def rejoin(self, data: bytes) -> None:
        """Join the run of this ask as an earlier process did, and say nothing. Raises Refusal."""
        self._join(ask_in(joining.Join, data))

    def refuse(self, step: str, round: int, data: bytes, *, error: Exception) -> bytes:
        """The encoded failure for the error being handled, logged, and noted as a reply is."""
        self.complain(step, round)
        return self._noted(step, round, data, encode(failure_from(error)))

    def complain(self, step: str, round: int) -> None:
        """Put the error that is being handled into the site's own log."""
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
        """True if the site deals only with peers whose fingerprints people have compared."""
        return self._file.compared

    def _noted(self, step: str, round: int, data: bytes, reply: bytes) -> bytes:
        try:
            self._note(step, round, data, reply)
        except Exception as error:  # a reply that cannot be noted does not leave
            self.complain(step, round)
            return encode(failure_from(error))
        return reply

    @property
    def _file(self) -> SiteFile:
        """The site's own file, as it is now. Raises Refusal."""
        try:
            self._read = load_site(self._path)
        except (ConfideError, OSError) as error:
            raise Refusal("site-file") from error
        return self._read

    def _answer(self, name: str, round: int, data: bytes) -> bytes:
        if name == joining.JOIN.name:
            return encode(self._join(ask_in(joining.Join, data)))
        if self._run is None:
            raise Refusal("not-joined")
        if name == joining.CLOSE.name:
            if self._run.host.kept is not None:
                self._run.host.kept.clear()
            return encode(joining.Closed(self._run.ledger.lines))
        asked = self._run.asked
        found = self._agreements.agreed(self._file, asked.settings.trained_by, None)
        self._agreements.check(found, asked)
        if name == joining.LEAVE.name:
            return encode(self._leave(self._run, ask_in(joining.Leave, data)))
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

    def _join(self, ask: joining.Join) -> joining.Joined:
        """Check that the site agreed to this run, and read its text. Raises Refusal."""
        file = self._file
        if ask.version != __version__:
            raise Refusal("other-version")
        try:
            tree = parse_toml(ask.settings)
            folder = RunFolder(files.path_inside(Path(file.memory), RUNS, ask.run))
        except (SettingsError, GuardError) as error:  # of the settings, of an unsafe name
            raise Refusal("bad-ask") from error
        settings = parse(tree)
        joining.check_suited(settings)
        asked = RunTerms(settings, tuple(ask.sites), ask.lead, ask.run)
        agreed = self._agreements.agreed(file, settings.trained_by, ask.wire)
        if fewest_in_sum(settings, ask.sites) < file.guards.min_sites:
            raise Refusal("few-sites")
        usual = colluders(len(set(ask.sites)))
        if (settings.federation.colluding or usual) < (file.colluding or usual):
            raise Refusal(OUTSIDE, "federation.colluding")
        self._agreements.check(agreed, asked)
        if file.guards.masked and sums_of(settings) != "masked":
            raise Refusal("only-masked")
        guards = Guards(**file.guards.model_dump())
        joining.check_guards(settings, guards)
        public = settings.public.model_copy(update={"files": ()})  # it lies at the server
        own = own_computing(file) | {
            "site": (as_site_table(file),),
            "split": None,
            "public": public,
        }
        mine = settings.model_copy(update=own)
        folder.check(mine, resume=folder.is_taken())  # another run's folder is not written over
        folder.close()
        self._agreements.count(agreed, asked)
        gathered = gather(mine, folder.sites, key_file=None)
        member = kept = None
        if sums_of(settings) != "plain":
            member = member_of(self.place, file, ask, agreement=agreed.agreement, settings=settings)
        elif self.place is not None and settings.select.every == 1:
            said = dump(mine), json.dumps(file.guards.model_dump()), gathered.fingerprint
            kept = KeptReplies(
                folder.path / REPLIES,
                self.place.identity.key,
                binding=seals.digest(*(one.encode() for one in (ask.run, __version__, *said))),
            )
        compute_as(mine)
        spec = replace(gathered.specs[0], guards=guards, remote=True)
        budget = Path(file.memory) / PRIVACY
        host = hosting_of(mine).host(spec, {}, member=member, budget=budget, kept=kept)
        self._run = _Run(mine, folder, gathered, host, asked=asked, opening=self.opening)
        self._steps |= self._run.steps
        folder.write("settings.toml", dump(mine))
        facts = gathered.facts()["sites"][file.name]
        reply = joining.Joined(
            fingerprint=self._veiled(gathered.fingerprint),
            sentences={part: 0 if member else facts[part] for part in ("train", "dev", "test")},
            entities={} if member else facts["entities"],
            problems={} if member else facts["problems"],
        )
        check_reply(joining.JOIN, ask, reply)
        check_open(reply, guards)
        return reply

    def _veiled(self, fingerprint: str) -> str:
        """The text's digest under a secret that never leaves.

        It is the same for the same text, but nobody can use it to test a guess at the text.
        """
        path = Path(self._file.memory) / "veil.key"
        if not path.exists():
            files.write_of_run(path, secrets.token_hex(32).encode())
        return hmac.new(files.file_bytes(path), fingerprint.encode(), hashlib.sha256).hexdigest()

    def _leave(self, run: _Run, ask: joining.Leave) -> joining.LeaveReply:
        """Keep the trained state beside the site's memory, and count the site's own errors."""
        calibrator = Calibrator(ask.temperature, ask.offset, ask.finds)
        if not calibrator.is_sound:
            raise Refusal("bad-ask")
        method = method_named(run.settings.trained_by)
        whole = run.host.site.whole(ask)
        state: Any = replace(decode(method.State, whole.state.data), weights=whole.weights)
        progress, encoded = json.dumps({"best_round": ask.round}), as_array(encode(state))
        run.folder.store().save(
            Checkpoint(ask.round, encoded, run.gathered.fingerprint, progress, 0), best=ask.round
        )
        run.host.site.forget()
        spec = run.host.site
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
        reply = joining.LeaveReply(kept=True)
        check_reply(joining.LEAVE, ask, reply)
        return reply

    def _note(self, name: str, round: int, data: bytes, reply: bytes) -> None:
        """Note both messages in the ledger of the run, or of refusals before the site joins.

        Of a step that is unknown here, each is a line: whoever asks for many fills no more.
        """
        step = EXCHANGES.get(name) or self._steps.get(name)
        if step is not None and self._run is not None:
            step = as_asked(step, sums_of(self._run.settings))
        ledger = self._run.ledger if self._run else self.refusals()
        failed = peek(reply).message == Failure.__name__
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
        host: SiteHost,
        *,
        opening: files.Tree,
        asked: RunTerms,
    ) -> None:
        self.settings = settings
        self.asked = asked
        self.folder = folder
        self.gathered = gathered
        self.host = host
        self.steps = answered_in(settings)
        self.ledger = Ledger.resumed(folder.path / LEDGER)
        if opening and not self.ledger.lines:
            self.ledger.note(OPENED, **opening)
        self._asked = folder.path / "asked.txt"
        before = files.file_text(self._asked, files.MOST_JSON) if self._asked.exists() else ""
        self._seen = set(before.split())

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


def as_site_table(file: SiteFile) -> SiteTable:
    """The part of a site's own file that a run's settings hold."""
    return SiteTable(**{name: getattr(file, name) for name in SiteTable.model_fields})


# --- Evidence at a site
#
# Its home answers only asks that the server's key has signed.
#
# It checks the seal of an ask before the home sees the ask, notes both seals in the site's ledger,
# and seals the reply. `confide.federation.seals` describes the seals.


class SignedHome:
    """The home of a site that has an identity. Answers bytes and a seal with bytes and a seal."""

    def __init__(self, home: SiteHome, place: Signer) -> None:
        self._home = home
        home.place = self._place = place
        self._server: Card | None = None
        self._run = ""
        self.joins = False
        """True while asks come in one file with the join, and so know of no reply yet."""
        self._heads: dict[str, str] = {}
        self._met: dict[str, str] = {}

    def answer(self, step: str, round: int, data: bytes, *, seal: bytes) -> tuple[bytes, bytes]:
        """The encoded reply or failure, and its seal; both are noted before they are returned.

        An ask whose seal cannot be read gets a failure without a seal.
        """
        with files.for_the_owner():
            try:
                asked = seals.AskSeal.decode(seal)
            except MessageError:
                refused = Refusal("bad-signature", "seal")
                return self._home.refuse(step, round, data, error=refused), b""
            inner = seals.inner_digest(data)
            real = seals.message_digest(bytes.fromhex(asked.nonce), inner)
            why = ""
            try:
                self._check(asked, step, round, real)
                if step == joining.JOIN.name:
                    self._check_join(asked, data)
            except Exception as error:
                why = error.code if isinstance(error, Refusal) else "error"
                reply = self._home.refuse(step, round, data, error=error)
            else:
                reply = self._home.answer(step, round, data)
            return self._sealed(asked, real, reply, weight=len(seal), refused=why)

    @files.for_the_owner()
    def rejoin(self, data: bytes, *, seal: bytes) -> None:
        """Go on with a run that an earlier process has joined, by the ask that it joined with.

        The ledger says no more than that the run was resumed. Raises Refusal, MessageError, and
        whatever is wrong with the site's files.
        """
        asked = seals.AskSeal.decode(seal)
        inner = seals.inner_digest(data)
        real = seals.message_digest(bytes.fromhex(asked.nonce), inner)
        self._check(asked, joining.JOIN.name, asked.round, real)
        self._check_join(asked, data)
        self._home.rejoin(data)
        assert self._home.book is not None, "it has joined"
        self._recall(self._home.book)

    def _check(self, asked: seals.AskSeal, step: str, round: int, real: str) -> None:
        """Raise Refusal if an ask is not the one that the server signed, or not for this turn."""
        if asked.card:
            self._meet_server(Card.decode(asked.card))
        if self._server is None or not asked.verifies(self._server.public):
            raise Refusal("bad-signature", "signature")
        fits = {
            "site": asked.site == self._place.name,
            "step": asked.step == step,
            "round": asked.round == round,
            "digest": asked.digest == real,
        }
        if step != joining.JOIN.name:
            fits["run"] = asked.run == self._run
            first = self.joins and asked.head == seals.EMPTY
            fits["head"] = first or self._heads.get(asked.head) == asked.reply
        wrong = [name for name, fit in fits.items() if not fit]
        if wrong:
            raise Refusal("bad-signature", wrong[0])

    def _meet_server(self, card: Card) -> None:
        self._place.meet(card, "server", SERVER, only_compared=self._home.only_compared)
        self._server = card

    def _check_join(self, asked: seals.AskSeal, data: bytes) -> None:
        """Raise Refusal if the lead did not order this run with these sites."""
        try:
            ask = decode(joining.Join, data)
        except MessageError as error:
            raise Refusal("bad-ask") from error
        order = joining.Order.unpack(
            ask.order, run=ask.run, settings=ask.settings, version=ask.version
        )
        lead = order.lead()
        fits = {
            "run": ask.run == asked.run,
            "lead": ask.lead == lead.name,
            "sites": self._place.name in ask.sites and set(ask.sites) <= set(order.sites),
        }
        wrong = [name for name, fit in fits.items() if not fit]
        if wrong:
            raise Refusal("bad-signature", wrong[0])
        self._place.meet(lead, "lead", lead.name, only_compared=self._home.only_compared)
        assert self._server is not None, "its seal has been checked"
        own = self._place.identity.public
        self._home.opening = order.opening(self._place.name, own, server=self._server.key)
        self._run = ask.run

    def _sealed(
        self, asked: seals.AskSeal, real: str, reply: bytes, *, weight: int, refused: str
    ) -> tuple[bytes, bytes]:
        """The reply and its seal, once both seals are noted; a failure if that goes wrong."""
        joined = self._home.book is not None
        book = self._home.book or self._home.refusals()
        head = book.head if joined else seals.EMPTY
        try:
            if joined and asked.step == joining.JOIN.name and not refused:
                book.flush()  # if the reply could not be noted, nothing is on disk yet
                self._recall(book)
            seal = self._reply_seal(asked, real, reply)
            self._note(book, asked, weight, refused=refused)
            self._note(book, seal, _weight(seal, head))
            if joined:
                for one in (asked, seal):
                    seals.keep_nonce(self._home.book_path, one.digest, one.nonce)
            book.flush()
            head = book.head if joined else seals.EMPTY
        except Exception as error:  # a reply that cannot be noted does not leave
            self._home.complain(asked.step, asked.round)
            reply = encode(failure_from(error))
            seal = self._reply_seal(asked, real, reply)
        if joined:
            self._heads[head] = seal.digest
        return reply, self._signed(seal, head).encode()

    def _reply_seal(self, asked: seals.AskSeal, real: str, reply: bytes) -> seals.ReplySeal:
        nonce = seals.fresh_nonce()
        return seals.ReplySeal(
            run=asked.run,
            site=self._place.name,
            round=asked.round,
            step=asked.step,
            attempt=asked.attempt,
            ask=real,
            digest=seals.message_digest(nonce, seals.inner_digest(reply)),
            nonce=nonce.hex(),
            head=seals.EMPTY,
            card=self._place.card.encode() if asked.step == joining.JOIN.name else "",
        )

    def _signed(self, seal: seals.ReplySeal, head: str) -> seals.ReplySeal:
        return dataclasses.replace(seal, head=head).sign(self._place.identity.key)

    def _note(
        self, book: Ledger, seal: seals.AskSeal | seals.ReplySeal, weight: int, *, refused: str = ""
    ) -> None:
        """Add the seal's line, without what the ledger's first line or the next one holds."""
        up = isinstance(seal, seals.ReplySeal)
        facts = joining.seal_facts(
            seal,
            run=self._run,
            sites=self._home.opening.get("sites", ()),
            without=("head", "signature") if up else (),
        )
        facts |= {"refused": refused} if refused else {}
        book.seal(weight, {"direction": "up" if up else "down", **facts})

    def _recall(self, book: Ledger) -> None:
        """Read back the heads that an earlier process of this run signed, and the keys it met."""
        opening, lines = self._home.opening, read_lines(self._home.book_path)
        self._met = joining.identities_in(lines)
        for line in lines:
            if line.tree.get("field") == SEAL and line.tree["direction"] == "up":
                self._heads[line.digest] = str(line.tree["digest"])
        now = {SERVER: opening["server_identity"], self._place.name: opening["identity"]}
        for peer, key in now.items():
            if self._met.get(peer) != key:
                self._met[peer] = key
                book.note(MET, peer=peer, identity=key, compared=peer != SERVER)


def _weight(seal: seals.ReplySeal, head: str) -> int:
    """The bytes of the seal with its signature; every head but the empty one is as long."""
    return len(dataclasses.replace(seal, head=head, signature="0" * 128).encode())
