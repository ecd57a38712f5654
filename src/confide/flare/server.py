"""The server's side of a run over real sites: sites join, a method runs, sites leave.

It does not know which engine it has. From federation to result it follows the same path as a run on
one machine (`confide.runs.run`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from confide.corpora.dealing import text_fingerprint
from confide.errors import (
    ConfideError,
    FederationError,
    MessageError,
    QuorumError,
    SettingsError,
    Waiting,
)
from confide.federation import seals
from confide.federation.events import Event, Watcher
from confide.federation.failures import CODES, Failure, Refusal
from confide.federation.federation import Federation, too_few
from confide.federation.ledger import CLOSED, MET, OPENED, SEAL, Ledger, read_lines
from confide.federation.messages import Pieces, encode, peek
from confide.federation.steps import Delivery, Engine
from confide.files import for_the_owner, path_inside
from confide.flare import joining
from confide.flare.agreements import ALONE, OUTSIDE
from confide.flare.kit import SERVER, Kit
from confide.flare.peers import Card, Signer, open_signer
from confide.kinds.steps import Start
from confide.methods import method_of
from confide.runs import run as runs
from confide.runs.folder import RunFolder, environment
from confide.runs.result import Result
from confide.runs.rounds import Attendance
from confide.runs.sites import public_set
from confide.settings import Settings, dump, parse
from confide.settings.toml import parse_toml
from confide.text.document import Document
from confide.version import __version__

if TYPE_CHECKING:
    from confide.runs.rounds import Selected

# --- Evidence at the server
#
# An engine seals every ask and checks every reply's seal.
#
# It wraps any engine that carries seals beside messages, and does not know what messages mean.
# `confide.federation.seals` describes the seals.


@dataclass(frozen=True)
class ServerEvidence:
    """The server's place, which signs, and the order that the lead signed."""

    place: Signer
    order: joining.Order

    def check(self) -> Card:
        """The lead's card. Raises FederationError if the lead is not who it claims to be."""
        try:
            card = self.order.lead()
            self.place.meet(card, "lead", card.name)
        except Refusal as error:
            raise FederationError(
                f"the lead's order is refused: {CODES[error.code]}",
                got=error.detail or None,
                where="at the server",
            ) from error
        return card


def server_evidence(
    kit: Kit, lead: str, *, run: str, settings: str, sites: Sequence[str], version: str
) -> ServerEvidence:
    """The evidence of a run at the server of this kit; `lead` is from the lead's submission.

    The signature is checked when the run begins (`ServerEvidence.check`). Raises SettingsError,
    KeyFileError, KitError, FederationError.
    """
    try:
        tree = parse_toml(settings)
    except SettingsError as error:
        raise FederationError(f"the settings of the run cannot be read: {error.what}") from error
    plain = joining.settings_for_sites(parse(tree))
    try:
        packed = bytes.fromhex(lead).decode()
        order = joining.Order.unpack(packed, run=run, settings=plain, version=version)
    except (Refusal, ValueError) as error:
        raise FederationError(
            "the lead has not signed its order",
            fix="install the same version of confide everywhere, and submit the run again",
        ) from error
    if order.sites != tuple(sorted(sites)):
        raise FederationError("the lead has not signed an order of these sites")
    return ServerEvidence(open_signer(kit), order)


class SealedEngine(Engine, Protocol):
    """An engine that carries a seal beside each message."""

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes | Pieces],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply with its seal, or a failure."""
        ...


class SignedEngine:
    """Seals every ask, and passes on only replies that their site has sealed.

    What it signs and checks is noted in `ledger`, whose file is at `path`.
    """

    def __init__(
        self, carrier: SealedEngine, evidence: ServerEvidence, ledger: Ledger, path: Path
    ) -> None:
        self._carrier = carrier
        self.sites = carrier.sites
        self._place = evidence.place
        self._order = evidence.order
        self._ledger = ledger
        self._path = path
        self._last: dict[str, tuple[str, str]] = {}
        self._attempts: Counter[tuple[int, str]] = Counter()
        self._met: dict[str, str] = {}
        self._keys: dict[str, bytes] = {}
        self._remember()

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes | Pieces], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply or failure; a reply without a good seal becomes a failure."""
        sealed = self._sealed(step, round, asks)
        encoded = {site: seal.encode() for site, seal in sealed.items()}
        for site, seal in sealed.items():
            self._note(seal, "down", len(encoded[site]), without=("signature",))
        self._ledger.flush()  # an ask is on disk before it leaves
        deliveries = self._carrier.deliver(step, round, asks=asks, timeout=timeout, seals=encoded)
        with closing(deliveries):
            for delivery in deliveries:
                found = [self._checked_delivery(delivery, sealed[delivery.site])]
                del delivery  # not to be held while others are read
                yield found.pop()

    def _sealed(
        self, step: str, round: int, asks: Mapping[str, bytes | Pieces]
    ) -> dict[str, seals.AskSeal]:
        """A seal for each ask. Sites that get the same bytes share one digest, computed once."""
        self._attempts[round, step] += 1
        groups: dict[int, list[str]] = {}
        for site in sorted(asks):
            groups.setdefault(id(asks[site]), []).append(site)
        found: dict[str, seals.AskSeal] = {}
        for names in groups.values():
            nonce = seals.fresh_nonce()
            named = seals.message_digest(nonce, seals.inner_digest(asks[names[0]]))
            seals.keep_nonce(self._path, named, nonce.hex())
            for site in names:
                reply, head = self._last.get(site, (seals.EMPTY, seals.EMPTY))
                seal = seals.AskSeal(
                    run=self._order.run,
                    site=site,
                    round=round,
                    step=step,
                    attempt=self._attempts[round, step],
                    digest=named,
                    nonce=nonce.hex(),
                    audience=tuple(names),
                    reply=reply,
                    head=head,
                    own=self._ledger.head,
                    card=self._place.card.encode() if step == joining.JOIN.name else "",
                )
                found[site] = seal.sign(self._place.identity.key)
        return found

    def _checked_delivery(self, delivery: Delivery, asked: seals.AskSeal) -> Delivery:
        """The delivery if its seal is good, else a failure in its place."""
        if not delivery.heard:
            return delivery  # no reply came; the engine made this failure
        try:
            seal = self._checked(delivery, asked)
        except (Refusal, MessageError) as error:
            code = error.code if isinstance(error, Refusal) else "forged-reply"
            failure = encode(Failure(code, "", "", delivery.site))
            return Delivery(delivery.site, failure, delivery.seconds, heard=False)
        self._note_reply(seal, len(delivery.seal))
        return delivery

    def _note_reply(self, seal: seals.ReplySeal, weight: int) -> None:
        self._note(seal, "up", weight)
        seals.keep_nonce(self._path, seal.digest, seal.nonce)
        self._last[seal.site] = (seal.digest, seal.head)

    def _checked(self, delivery: Delivery, asked: seals.AskSeal) -> seals.ReplySeal:
        """The seal of a reply. Raises MessageError, Refusal."""
        seal, code = seals.ReplySeal.decode(delivery.seal), code_of(delivery.reply)
        real = seals.message_digest(bytes.fromhex(seal.nonce), seals.inner_digest(delivery.reply))
        if seal.digest != real:
            raise Refusal("forged-reply", "digest")
        names = ("run", "site", "round", "step", "attempt")
        fits = {name: getattr(seal, name) == getattr(asked, name) for name in names}
        fits["ask"] = seal.ask == asked.digest
        fits["head"] = seal.head != seals.EMPTY or (code != "" and seal.step == joining.JOIN.name)
        wrong = [name for name, fit in fits.items() if not fit]
        if wrong and code != "bad-signature":  # with that code the site got something else
            raise Refusal("forged-reply", wrong[0])
        if seal.card:
            self._meet(delivery.site, seal)
        if not seal.verifies(self._keys.get(delivery.site, b"")):
            raise Refusal("forged-reply", "signature")
        return seal

    def _meet(self, site: str, seal: seals.ReplySeal) -> None:
        """Pin the site's key, or check that it is the pinned one. Raises Refusal."""
        card = Card.decode(seal.card)
        if not seal.verifies(card.public):
            raise Refusal("forged-reply", "signature")
        try:
            pin = self._place.meet(card, "site", site)
        except ConfideError as error:
            raise error if isinstance(error, Refusal) else Refusal("uncertified", site) from error
        self._keys[site] = card.public
        if self._met.get(site) != card.key:
            self._met[site] = card.key
            self._ledger.note(MET, peer=site, identity=card.key, compared=pin.compared)

    def _note(
        self, seal: seals.AskSeal | seals.ReplySeal, direction: str, weight: int,
        *, without: Sequence[str] = (),
    ) -> None:  # fmt: skip
        facts = joining.seal_facts(
            seal, run=self._order.run, sites=self._order.sites, without=without
        )
        self._ledger.seal(weight, {"direction": direction, **facts})

    def _remember(self) -> None:
        """Read back what an earlier process of this run noted; in a new ledger, note the run."""
        own = self._place.identity.public
        if self._ledger.lines == 0:
            self._ledger.note(OPENED, **self._order.opening(SERVER, own))
            self._ledger.flush()
            return
        lines = read_lines(self._path)
        self._met = joining.identities_in(lines)
        for tree in (line.tree for line in lines if line.tree.get("field") == SEAL):
            turn, site = (tree["round"], tree["step"]), tree["site"]
            self._attempts[turn] = max(self._attempts[turn], tree["attempt"])
            if tree["direction"] == "up":
                self._last[site] = (tree["digest"], tree["head"])
        if self._met.get(SERVER) != own.hex():
            self._ledger.note(MET, peer=SERVER, identity=own.hex(), compared=True)


def code_of(reply: bytes) -> str:
    """The code of a failure; "" if the reply is not a failure."""
    try:
        header = peek(reply)
    except MessageError:
        return ""
    return str(header.fields.get("code")) if header.message == Failure.__name__ else ""


WITHDRAWN = {"no-consent", "other-wire", OUTSIDE}
"""Codes of a site that does not agree, or no longer agrees."""


@dataclass(frozen=True)
class Conductor:
    """Conducts one run, called `name` everywhere and kept in `folder` at the server.

    `settings` is TOML, and `version` that of confide at the lead. `public` is the server's folder
    from which a public set may be read, if there is one. With `evidence` every ask and reply is
    signed; without it, `lead` is the name of whoever is said to have ordered the run. `recheck`:
    see `Attendance`.
    """

    name: str
    settings: str
    version: str
    engine: SealedEngine
    folder: Path
    public: Path | None = None
    evidence: ServerEvidence | None = None
    lead: str = ""
    recheck: Callable[[Sequence[str]], None] = lambda sites: None
    repeats: ClassVar[bool] = False

    @for_the_owner()
    def conduct(self, watch: Watcher) -> Result:
        """Run it from its last checkpoint to the end; the content of result.json.

        Raises FederationError (a site fails, versions differ), SettingsError, RunError.
        """
        if self.version != __version__:
            raise FederationError(
                "the lead and the server run different versions of confide",
                expected=f"{__version__}, as at the server",
                got=self.version,
                fix="install the same version everywhere",
            )
        settings = parse(parse_toml(self.settings))
        joining.check_suited(settings)
        if self.evidence:
            self.evidence.check()
        folder = RunFolder(self.folder)
        folder.check(settings, resume=folder.is_taken())
        folder.close()
        folder.write("settings.toml", dump(settings))
        public, start = self._public(settings), self._start(settings)
        watch(Event("start", rounds=settings.rounds, message=f"{self.name}: {settings.method}"))
        sites = self.engine.sites
        alone = {site: (site,) for site in sites}
        ended = []
        waiting: list[str] = []
        for name, names in (alone if settings.method == ALONE else {"": sites}).items():
            try:
                ended.append(
                    self._federation(settings, name, names, public=public, start=start, watch=watch)
                )
            except Waiting as error:  # the files for all sites are written at once
                waiting += error.sites
        if waiting:
            raise Waiting(waiting)
        joined = {site: one for _, part in ended for site, one in sorted(part.items())}
        digest = _fingerprint(joined, public)
        folder.write("environment.json", environment(settings, digest))
        facts = {}
        if runs.sums_of(settings) == "plain":  # else sites say nothing of how much they have
            for site, one in joined.items():
                counts = {"entities": one.entities, "problems": one.problems}
                ordered = {key: dict(sorted(found.items())) for key, found in counts.items()}
                facts[site] = one.sentences | ordered
        data = {"fingerprint": digest, "sites": facts}
        name = settings.name or self.name
        result = runs.result_of(settings, [outcome for outcome, _ in ended], name=name, data=data)
        result.write(folder.path)
        watch(Event("end", message=self.name))
        return result

    def _federation(
        self,
        settings: Settings,
        name: str,
        sites: tuple[str, ...],
        *,
        public: Sequence[Document],
        start: Start | None,
        watch: Watcher,
    ) -> tuple[runs.Outcome, dict[str, joining.Joined]]:
        """One federation of the run: join, train and score, leave.

        An engine that carries files gives them as many asks as need no reply to each other: the
        first one after `join`, and `leave` and `close` beside the last scoring.
        """
        folder = RunFolder(self.folder)
        ledger, engine = self.opened(folder, name)
        federation = runs.federation_of(settings, engine, ledger, sites=sites, watch=watch)
        method = method_of(settings)(settings, public, start=start)
        binding = runs.binding_of(settings, _fingerprint({}, public))
        plan = runs.RunPlan(
            settings, method, engine, folder, binding, watch, called=self.name, repeats=self.repeats
        )
        try:
            joined = federation.ask(joining.JOIN, self._join(settings, sites), round=0)
        except Waiting:
            if not folder.store(name).rounds():
                runs.outcome_of(plan, name, sites, ledger=ledger)
            raise

        def end(trained: Selected) -> None:
            waiting = None
            try:
                _leave(federation, trained, sites=sorted(joined))
            except Waiting as error:
                waiting = error
            if self.evidence:
                _close(federation, ledger, trained, sites=sorted(joined))
            if waiting is not None:
                raise waiting

        prints = {site: one.fingerprint for site, one in joined.items()}
        attendance = Attendance(prints, federation.take_faults(), self.recheck)
        if runs.sums_of(settings) == "plain":  # a masked sum is not over with the first reply
            plan = replace(plan, ahead=end)
        outcome = runs.outcome_of(plan, name, sites, ledger=ledger, attendance=attendance)
        federation.broadcast = outcome.broadcast
        watch(Event("scores", message="the sites keep their models and count their own errors"))
        end(outcome.trained)
        ledger.flush()
        return outcome, joined

    def opened(self, folder: RunFolder, name: str) -> tuple[Ledger, Engine]:
        """The ledger of one federation, and the engine that asks its sites."""
        ledger = runs.open_ledger(folder, name)
        if self.evidence is None:
            return ledger, self.engine
        path = runs.ledger_path(folder, name)
        return ledger, SignedEngine(self.engine, self.evidence, ledger, path)

    def _join(self, settings: Settings, sites: Sequence[str]) -> joining.Join:
        order = self.evidence.order if self.evidence else None
        return joining.Join(
            version=__version__,
            run=self.name,
            settings=joining.settings_for_sites(settings),
            sites=list(sites),
            wire=joining.wire_digest(joining.wire_of(settings.trained_by)),
            lead=order.lead().name if order else self.lead,
            order=order.pack() if order else "",
        )

    def _start(self, settings: Settings) -> Start | None:
        """The model to start from, in the server's own folder only."""
        name = settings.start_from
        return runs.start_of(settings, place=self._inside(name)) if name else None

    def _inside(self, path: str) -> Path:
        """A file or folder below the server's own folder of public files."""
        if self.public is None:
            raise SettingsError(
                "this server has no folder of public files", fix="make `public` in its kit"
            )
        return path_inside(self.public, *Path(path).parts)

    def _public(self, settings: Settings) -> tuple[Document, ...]:
        """The public set, from files in the server's own folder only."""
        files = settings.public.files
        if not files:
            return ()
        found = tuple(str(self._inside(path)) for path in files)
        own = settings.public.model_copy(update={"files": found})
        return public_set(settings.model_copy(update={"public": own}))


def _leave(federation: Federation, trained: Selected, *, sites: Sequence[str]) -> None:
    """Send every site the state; one that no longer answers still has its memory.

    The run succeeds even if no site takes the state because none agrees any more. Raises
    QuorumError if too few are left of those that were there: it is asked again when they are back.
    """
    progress = trained.progress
    ask = joining.leave_ask(trained.state, progress.best_round, progress.calibrator)
    last = progress.history[-1]["round"]
    try:
        federation.ask(joining.LEAVE, ask, round=last, sites=sites, at_least=1)
    except QuorumError as error:
        codes = {fault.code for fault in error.faults}
        if not codes or codes - WITHDRAWN:
            raise
    faults = federation.take_faults()
    lost = [fault for fault in faults if fault.code == "lost"]
    left = len(sites) - len(lost)
    if lost and not federation.enough(left):
        raise too_few(joining.LEAVE.name, left, len(sites), round=last, faults=lost, of=len(sites))
    for fault in faults:
        progress.left_out[fault.site] = fault.code


def _close(
    federation: Federation, ledger: Ledger, trained: Selected, *, sites: Sequence[str]
) -> None:
    """Have server and sites sign the heads of their ledgers, so that neither can cut off the end.

    The run is complete without it: a site that no longer answers is noted as left out.
    """
    progress = trained.progress
    last, ask = progress.history[-1]["round"], joining.Close(ledger.lines)
    with contextlib.suppress(QuorumError):
        federation.ask(joining.CLOSE, ask, round=last, sites=sites, at_least=1)
    for fault in federation.take_faults():
        progress.left_out.setdefault(fault.site, fault.code)
    ledger.note(CLOSED)


def _fingerprint(joined: Mapping[str, joining.Joined], public: Sequence[Document]) -> str:
    """One digest of all sites' text, and of the public set, if there is one."""
    lines = "".join(f"{site}\0{one.fingerprint}\n" for site, one in sorted(joined.items()))
    if public:
        lines += text_fingerprint([("", "public", public)], relations=True)
    return hashlib.sha256(lines.encode()).hexdigest()
