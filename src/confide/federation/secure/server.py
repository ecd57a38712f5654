"""The server's side of secure sums: it collects what sites send, and can open only their sum.

`Summing` asks through the federation, so that every exchange is checked, noted and timed as any
other step. It never sees a site's numbers: masked lanes come, and the masks go once the sites that
are left have given their shares. docs/secure-aggregation.md says what that promises.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide.errors import FederationError, RunError, SiteFault
from confide.federation.broadcast import MISSING, Later
from confide.federation.combining import Combining, Pile, Total
from confide.federation.failures import CODES, Refusal, blaming, refused
from confide.federation.messages import encode
from confide.federation.quantising import can_quantise
from confide.federation.seals import digest, int_bytes, is_signed_by
from confide.federation.secure import crypto, lanes, messages, steps
from confide.federation.secure.messages import Offered, Opening, Roster
from confide.federation.steps import Shapes, Step
from confide.files import decode_json, file_text, write_of_run

# --- One attempt at a secure sum
#
# The server hands offers and shares on, adds up what comes, and takes all masks off the sum.
#
# A share that does not fit its digest is the fault of who gave it: whoever held it has compared it
# when it came. A box that gave its holder no such share is the fault of who made it. What shares
# join to is compared with the site's key or with its commitment, so no wrong secret is ever used.


Replies = Callable[..., Generator[tuple[str, Any], None, None]]
"""`replies(step, asks, round=n, failed=note)` gives the good replies by site."""
Pack = Callable[[Any, Sequence[str]], Any]
"""`pack(ask, sites)` is the ask as it travels to these sites (`Broadcast.packed`)."""
NOT_MET = "not-met"
OTHERS = "other-common"
"""The code of a site that was given something other than most were."""


class Exchange:
    """Asks in one round; remembers how sites failed, and whether sites must be met again.

    `refuse` is told of sites that fail in a way which only sums can see.
    """

    def __init__(
        self,
        round: int,
        replies: Replies,
        refuse: Callable[[SiteFault], None],
        *,
        pack: Pack = lambda ask, names: ask,
    ) -> None:
        self.round = round
        self.unmet = False
        self.failed: list[str] = []  # by the codes of failures
        self.pack = pack
        self._replies = replies
        self._refuse = refuse

    def ask(self, step: Step, ask: object, names: Sequence[str]) -> dict[str, Any]:
        """The good replies to one ask or, from a mapping, to each site's own, by site."""
        return dict(sorted(self.each(step, ask, names)))

    def each(
        self, step: Step, ask: object, names: Sequence[str]
    ) -> Generator[tuple[str, Any], None, None]:
        """The good replies, as they come; none is held."""
        asks = ask if isinstance(ask, Mapping) else dict.fromkeys(names, ask)
        self.failed = []
        return self._replies(step, asks, round=self.round, failed=self._note)

    def blame(self, site: str, step: str, why: str, *, code: str = "refused") -> None:
        """Note that a site's reply was of no use."""
        self._refuse(refused(why, site=site, step=step, round=self.round, code=code))

    def _note(self, code: str) -> None:
        self.unmet |= code in (NOT_MET, MISSING)
        self.failed.append(code)


class EncodedAsk(NamedTuple):
    """The ask of a sum, which may be large: it is encoded when it is sent, and not held for long.

    `digest` is that of the ask with whole weights, however `encode` gives them.
    """

    digest: bytes
    encode: Callable[[], bytes]


class SumAttempt:
    """One attempt at a sum.

    Args:
        exchange: asks the sites.
        step: the summed step.
        opening: how it is asked, without its ask.
        ask: the ask.
        roster: the sites that sum, of which some may be lost.
        layout: that of the sum.
        note: is told of the sites in the sum before it is opened.
    """

    def __init__(
        self,
        exchange: Exchange,
        step: Step,
        opening: Opening,
        ask: EncodedAsk,
        *,
        roster: Roster,
        layout: lanes.LaneLayout,
        note: Callable[[list[str]], None] = lambda names: None,
    ) -> None:
        self.exchange = exchange
        self.step = step
        self.roster = roster
        self.layout = layout
        self.context = b""
        self.common = ""  # the digest of what the sites of the offers have in common
        self.offers: dict[str, Offered] = {}
        self.masked: list[str] = []
        self.lanes = lanes.no_lanes(layout, empty=False)
        self._opening = opening
        self._ask = ask
        self._note = note

    def sum(self, names: Sequence[str]) -> tuple[lanes.Lanes, list[str]] | None:
        """The sum of lanes, and the sites that answered to the end; None if they were too few."""
        exchange, least = self.exchange, self.roster.least
        self._collect_offers(names)
        if exchange.unmet or len(self.offers) < least:
            return None
        self._collect_masked()
        if len(self.masked) < least:
            return None
        signatures = self._signatures()
        if len(signatures) < least:
            return None
        self._note(self.masked)
        sites, width = len(self.offers), crypto.SHARE
        sizes: Shapes = {"given_M": {"": (sites,)}, "shares_M66": {"": (sites, width)}}
        unmask = messages.Unmask(self.context.hex(), list(signatures), list(signatures.values()))
        step = replace(steps.UNMASK, sizes=sizes)
        given = exchange.ask(step, unmask, self.masked)
        if len(given) < least:
            return None
        self._take_off_masks(self._shares_by_owner(given))
        return self.lanes, self.masked

    def _collect_offers(self, names: Sequence[str]) -> None:
        """Open the sum, and keep the offers that are signed and of sites with most in common."""
        encode = self._ask.encode
        asked = Later(lambda: replace(self._opening, ask_B=np.frombuffer(encode(), np.uint8)))
        step = steps.offer_step(self.step, sites=len(self.roster.names))
        self.offers = self.exchange.ask(step, asked, names)
        self._drop_differing(self.offers)
        self.context = messages.sum_context(
            self._ask.digest,
            self.roster.id,
            round=self.exchange.round,
            step=self.step.name,
            attempt=self._opening.attempt,
            layout=self.layout.digest,
            common=bytes.fromhex(self.common),
        )
        self._check_signed(self.offers, self.context)

    def _drop_differing(self, offers: dict[str, Offered]) -> None:
        """Leave out sites that were given something other than most."""
        said = Counter(offers[name].common for name in sorted(offers))
        self.common = max(said, key=said.__getitem__, default="")
        for name in [one for one in offers if offers[one].common != self.common]:
            why = "it was given something other than most sites were"
            self.exchange.blame(name, self.step.name, why, code=OTHERS)
            del offers[name]

    def _check_signed(self, offers: dict[str, Offered], context: bytes) -> None:
        """Leave out sites whose offer is not signed by them for this sum."""
        for name, offer in list(offers.items()):
            said = messages.offer_statement(
                context,
                offer.key,
                commitment=offer.commitment,
                boxes=digest(offer.boxes_O148.tobytes()).hex(),
                marks=digest(offer.marks_N64.tobytes()).hex(),
            )
            key = self.roster.peer(name).sign_key
            if not is_signed_by(key, offer.signature, said):
                self.exchange.blame(name, self.step.name, "its offer is not signed by it")
                del offers[name]

    def _collect_masked(self) -> None:
        """Hand the offers on, and add up the masked numbers that come."""
        layout = self.layout
        step = replace(steps.MASK, sizes={"lanes_B": {"": (layout.length,)}})
        asks = self._asks_to_mask()
        for name, reply in self.exchange.each(step, asks, list(asks)):
            if len(reply.lanes_B) == layout.length:
                layout.add(self.lanes, reply.lanes_B)
                self.masked.append(name)
            else:
                self.exchange.blame(name, "mask", "its numbers are not laid out as the ask says")
            del reply  # not to be held while the next one comes
        self.masked.sort()

    def _asks_to_mask(self) -> dict[str, messages.Mask]:
        """Make each site's ask to mask: all offered keys, and the boxes for itself."""
        names = sorted(self.offers)
        offers = [self.offers[name] for name in names]
        every = messages.Mask(
            context=self.context.hex(),
            names=names,
            keys=[one.key for one in offers],
            commitments=[one.commitment for one in offers],
            boxes=[digest(one.boxes_O148.tobytes()).hex() for one in offers],
            marks=[digest(one.marks_N64.tobytes()).hex() for one in offers],
            signatures=[one.signature for one in offers],
            own_M148=np.empty((0, messages.BOX), np.uint8),
            own_marks_M64=np.empty((0, 64), np.uint8),
        )
        asks = {}
        for name in names:
            place, others = self.roster.place(name) - 1, [one for one in names if one != name]
            own = [self.offers[one].boxes_O148[place - (one < name)] for one in others]
            marks = [self.offers[one].marks_N64[place] for one in others]
            asks[name] = replace(
                every,
                own_M148=np.array(own, np.uint8).reshape(-1, messages.BOX),
                own_marks_M64=np.array(marks, np.uint8).reshape(-1, 64),
            )
        return asks

    def _signatures(self) -> dict[str, str]:
        """The good signatures over the set whose masked numbers came, by site."""
        ask = messages.Agree(self.context.hex(), self.masked)
        replies = self.exchange.ask(steps.AGREE, ask, self.masked)
        keys = {name: self.offers[name].key for name in sorted(self.offers)}
        said = messages.set_statement(self.context, keys, self.masked)
        signatures = {}
        for name, reply in replies.items():
            if is_signed_by(self.roster.peer(name).sign_key, reply.signature, said):
                signatures[name] = reply.signature
            else:
                self.exchange.blame(name, steps.AGREE.name, "it did not sign the set")
        return signatures

    def _shares_by_owner(self, given: Mapping[str, Any]) -> dict[str, dict[int, bytes]]:
        """The good shares of each site's secret, by the place of who gave them."""
        names, blame = sorted(self.offers), self.exchange.blame
        found: dict[str, dict[int, bytes]] = {name: {} for name in names}
        for holder, reply in given.items():
            if len(reply.given_M) != len(names):
                blame(holder, "unmask", "it did not give a share for each site")
                continue
            place = self.roster.place(holder)
            for row, owner in enumerate(names):
                share = reply.shares_M66[row].tobytes()
                half = 32 if owner in self.masked else 0
                mark = self.offers[owner].marks_N64[place - 1][half : half + 32].tobytes()
                if not reply.given_M[row]:
                    blame(owner, "unmask", f"its box for {holder} did not hold its share")
                elif messages.share_mark(self.context, share) != mark:
                    blame(holder, "unmask", f"it gave a share of {owner} that {owner} did not make")
                else:
                    found[owner][place] = share
        return found

    def _take_off_masks(self, shares: Mapping[str, Mapping[int, bytes]]) -> None:
        """Take all masks off the sum. Raises FederationError if a secret cannot be put together."""
        masks: list[tuple[bytes, int]] = []
        least = self.roster.least
        for owner, own in shares.items():
            if len(own) < least:
                raise self._closed(owner, f"only {len(own)} of {least} shares came")
            secret = crypto.join_shares({x: own[x] for x in sorted(own)[:least]})
            offer = self.offers[owner]
            if owner in self.masked:
                seed = b"" if secret is None else secret
                if messages.seed_commitment(self.context, seed).hex() != offer.commitment:
                    raise self._closed(owner, "its shares do not give what it committed to")
                masks.append((crypto.derive_key(seed, crypto.own_info(self.context)), -1))
                continue
            if secret is None or crypto.public_key(secret).hex() != offer.key:
                raise self._closed(owner, "its shares do not give its key")
            with_key = crypto.secrets_with(secret)
            for name in self.masked:
                known = with_key(bytes.fromhex(self.offers[name].key))
                pair = crypto.derive_key(known, crypto.pair_info(self.context, owner, name))
                masks.append((pair, -1 if name < owner else 1))
        crypto.add_streams(self.layout.by_width(self.lanes), masks)

    def _closed(self, owner: str, why: str) -> FederationError:
        self.exchange.blame(owner, "unmask", why)
        return FederationError(f"the sum stays closed: {owner}: {why}", fix="resume the run")


# --- Lost sites
#
# The server's disk holds which sites the sums of a run have lost, and in which turn.
#
# Sites do not help to sum a set that has grown, and open the sum of a turn for one set only. So a
# run that goes on from an earlier checkpoint has to lose the same sites in the same turns. They
# are noted before a sum is opened: from then on sites may hold the server to that set.


AWAY = -1
"""Stands for a round where a site was away when the run went on."""


class LostSites:
    """The lost sites of one run; without a path they end with the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._turns: dict[str, list[Any]] = {}
        if path is not None and path.exists():
            self._turns = decode_json(file_text(path))

    def note(self, sites: Iterable[str], *, round: int, step: str) -> None:
        """Write down that the sum of this turn has lost these sites. Raises RunError."""
        new: dict[str, list[Any]] = {site: [round, step] for site in sites}
        found = new | self._turns
        if found != self._turns:
            self._turns = found
            if self._path is not None:
                write_of_run(self._path, json.dumps(found, sort_keys=True).encode())

    def at(self, round: int, step: str) -> set[str]:
        """The sites that the sum of this turn has lost before."""
        return {site for site, turn in self._turns.items() if turn == [round, step]}


# --- Greetings
#
# The server's disk holds how each site last greeted in a run: public keys, signed by the site.
#
# Whoever goes on with a run asks all sites to greet. One that is away keeps its place on the
# roster by its last greeting, as one does that is lost later: the threshold stays what it was, and
# sites cannot tell the two apart, so they need not trust the server in this. The secrets of that
# greeting are gone with the site's process, or held by it alone.


MOST_GREETINGS = 2**28
"""The most bytes of that file; a greeting has about 2,000."""


def read_greetings(path: Path | None) -> dict[str, messages.Greeted]:
    """Read the sites' last greetings; none without a file. Raises RunError if it is damaged."""
    if path is None or not path.exists():
        return {}
    try:
        held = decode_json(file_text(path, MOST_GREETINGS))
        return {str(site): messages.Greeted(**shown) for site, shown in held.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(
            "the sites' greetings cannot be read",
            where=str(path),
            fix="delete the file, and resume the run when all of its sites are connected",
        ) from error


_RANGE = 8.0
"""The limit of a site's change, in multiples of the mean change of the last sum."""


@dataclass
class SumResult:
    """A sum: by field, over these sites, and the number of those with nothing to add.

    `outliers`: those of `sites` whose group was summed, but is too far from the others to count.
    """

    total: Total
    sites: list[str]
    empty: int
    outliers: Sequence[str] = ()

    @property
    def counted(self) -> set[str]:
        """The sites whose numbers are in the sum."""
        return set(self.sites) - set(self.outliers)

    @property
    def answered(self) -> int:
        """The number of sites that had something to add that counts."""
        return len(self.sites) - len(self.outliers) - self.empty


class Summing:
    """Sums replies as whole numbers under masks, over all sites or by fixed groups.

    Under masks no single update can be compared with the others. The sums of fixed groups can: each
    hides its sites from the server as the sum of all would. A group whose mean change is many times
    that of the others is left out of the round, as a site is where single replies are seen; of the
    rest, a median moves little if one holds a liar. The price is that the server sees each group's
    sum. Without the first rule a median of three groups is not enough: with one of them far off,
    the median of a number is always the one of the two honest groups that is nearer to the lie.

    Args:
        run: the run's name; part of every key's context.
        sites: all sites of the run.
        colluding: how many of them may be in league with the server; None: `colluders`.
        group: the size of fixed groups, whose sums the server compares; 0: none.
        lost: the sites that earlier sums of the run have lost.
        greetings: the file in which greetings are kept for a run that goes on.
        lane_width: the bytes of a lane for changes of weights, once a sum has shown how large they
            are; 0: as many as the step says.
        repeats: the run's code runs again and again up to the same place, so that the numbers of
            attempts at a sum follow from its ask; otherwise they are random.

    `newest` are the sites in the newest sum; `ranges` holds the largest change that a lane can
    take, by step and array.
    """

    def __init__(
        self,
        *,
        run: str,
        sites: Sequence[str],
        colluding: int | None = None,
        group: int = 0,
        lost: LostSites | None = None,
        greetings: Path | None = None,
        lane_width: int = 0,
        repeats: bool = False,
    ) -> None:
        self._attempts: Counter[bytes] | None = Counter() if repeats else None
        self._kept = greetings
        self._lane_width = lane_width
        self.ranges: dict[str, dict[str, float]] = {}
        self._lost = lost or LostSites()
        self.groups = messages.groups_of(sites, group) if group else []
        self.examples = 0.0
        self.newest: list[str] = []
        self._run = run
        self.sites = sorted(sites)
        count = len(self.sites)
        self.colluding = messages.colluders(count) if colluding is None else colluding
        self._greetings = read_greetings(greetings)
        self._roster: Roster | None = None

    def sum(
        self,
        step: Step,
        ask: object,
        names: list[str],
        *,
        exchange: Exchange,
        combining: Combining,
        labels: Sequence[str] = (),
    ) -> SumResult:
        """The sum of the replies, of which no single one is seen, over the sites that answered."""
        if self.groups and step.learnt is not None and step.learnt.combined:
            return self._by_groups(step, ask, names, exchange=exchange, combining=combining)
        found = self._over(step, ask, names, exchange=exchange, labels=labels)
        return found or SumResult({}, [], 0)

    def leave_out(self, sites: Sequence[str]) -> list[str]:
        """Note that these sites are away where the run goes on; gives all that ever were.

        Sums are made without them from now on, and sites do not help to sum a set that grows.
        Before any site has greeted, nothing was summed.
        """
        if self._greetings:
            self._lost.note(sites, round=AWAY, step="")
        return sorted({*sites, *self._lost.at(AWAY, "")})

    def _by_groups(
        self, step: Step, ask: object, names: list[str], *, exchange: Exchange, combining: Combining
    ) -> SumResult:
        """The groups' sums combined, as if every site had learnt the combined change.

        A group that loses a site it cannot do without, or none of whose replies can be summed, does
        not count in this round, and neither does one that is too far off (`Combining.too_far`).
        """
        sites: dict[str, list[str]] = {}
        outliers: list[str] = []
        empty = 0
        with closing(Pile(step, combining)) as pile:
            for number, members in enumerate(self.groups, 1):
                own = [name for name in members if name in names]
                found = (
                    self._over(step, ask, own, exchange=exchange, group=members) if own else None
                )
                empty += found.empty if found else 0
                if found is None or found.empty == len(found.sites):
                    continue
                try:
                    with blaming(f"group {number}", step=step.name, round=exchange.round):
                        pile.put(f"group {number}", ask, step.reply(**found.total))
                except SiteFault:
                    empty -= found.empty
                    continue
                sites[f"group {number}"] = found.sites
            if len(pile.sites) < combining.needed:
                return SumResult({}, [], empty)
            for group, (code, why) in pile.leave_out().items():
                outliers += sites[group]
                told = f"{group}, the sum of {', '.join(sites[group])}, does not count: {why}"
                for name in sites[group]:
                    exchange.blame(name, step.name, told, code=code)
            return SumResult(pile.total(), sorted(chain(*sites.values())), empty, outliers)

    def _over(
        self,
        step: Step,
        ask: object,
        names: Sequence[str],
        *,
        exchange: Exchange,
        labels: Sequence[str] = (),
        group: Sequence[str] = (),
    ) -> SumResult | None:
        """The sum over those of these sites that answered to the end; None if they were too few.

        With `group`, one of the run's fixed groups, no other sites are in the sum.
        """
        own = steps.as_summed(step, list(labels))
        ranges = {} if group else self.ranges.get(step.name, {})
        opening = Opening(
            ask_B=np.empty(0, np.uint8),
            roster="",
            group=bool(group),
            attempt=0,
            sites=len(names),
            examples=self.examples,
            labels=list(labels),
            lane_width=self._lane_width if ranges else 0,
            ranges=ranges,
        )
        layout = steps.layout_for(own, ask, opening)
        there = sorted(set(names) - self._lost.at(exchange.round, step.name))
        encoded = EncodedAsk(digest(encode(ask)), lambda: encode(exchange.pack(ask, there)))

        def note(masked: list[str]) -> None:
            self._lost.note(set(names) - set(masked), round=exchange.round, step=step.name)

        for _ in range(2):
            exchange.unmet = False
            whole = self._greeted(exchange)
            found = SumAttempt(
                exchange,
                step,
                replace(opening, roster=whole.id.hex(), attempt=self._attempt(encoded.digest)),
                encoded,
                roster=whole.part(group) if group else whole,
                layout=layout,
                note=note,
            ).sum(there)
            if found is not None or not exchange.unmet:
                break
            self._roster = None  # a process was restarted: greet again
        if found is None:
            return None
        summed, sites = found
        total, empty = layout.total_of(own, ask, summed)
        if empty > len(sites):
            raise FederationError(
                f"the sum of step {step.name}, round {exchange.round}, is of no use: a site sent"
                " something other than its masked numbers, and nobody can tell which",
                fix="look at the sites' own logs, and resume the run",
            )
        self.newest = sites
        if self._lane_width and can_quantise(own) and not group:
            times = max(_RANGE, 2 * math.sqrt(len(names)))
            largest = lanes.largest_of(layout, own, summed)
            self.ranges[step.name] = {n: times * most for n, most in largest.items() if most}
        return SumResult(total, sites, empty)

    def _attempt(self, ask: bytes) -> int:
        """The number of a new attempt at a sum, whose ask has this digest."""
        if self._attempts is None:
            return secrets.randbits(62)
        self._attempts[ask] += 1
        return int.from_bytes(digest(ask, int_bytes(self._attempts[ask]))[:7], "little")

    def _greeted(self, exchange: Exchange) -> Roster:
        """The roster of the run; sites greet before the first sum and after a restart.

        A site that has ended keeps its place on the roster, and so the threshold stays. Raises
        FederationError if a site never greeted.
        """
        if self._roster is not None:
            return self._roster
        self._greetings |= exchange.ask(steps.GREET, messages.Greet(self._run), self.sites)
        if self._kept is not None:
            held = {name: asdict(one) for name, one in sorted(self._greetings.items())}
            write_of_run(self._kept, json.dumps(held, indent=1).encode())
        missing = sorted(set(self.sites) - self._greetings.keys())
        if missing:
            raise FederationError(
                f"sites did not greet, so nothing can be summed under masks: {', '.join(missing)}",
                fix="start them, or begin the run without them",
            )
        shown = [self._greetings[name] for name in self.sites]
        meet = messages.Meet(
            colluding=self.colluding,
            names=self.sites,
            identities=[one.identity for one in shown],
            box_keys=[one.box_key for one in shown],
            sign_keys=[one.sign_key for one in shown],
            signatures=[one.signature for one in shown],
            bindings=[one.binding for one in shown],
            cards=[one.card for one in shown],
            accounts=[one.account for one in shown],
        )
        try:
            roster = messages.roster_of(meet, run=self._run, binding=None)
        except Refusal as error:
            raise FederationError(f"the sites' greetings do not fit: {error.what}") from error
        met = exchange.ask(steps.MEET, meet, self.sites)
        differing = sorted(name for name, reply in met.items() if reply.roster != roster.id.hex())
        for name in differing:
            exchange.blame(name, steps.MEET.name, "it means another roster")
        if len(met) - len(differing) < roster.least:
            agreed = ", ".join(sorted(set(met) - set(differing))) or "none"
            failed = sorted(set(exchange.failed))
            means = [f"{code} means: {CODES[code]}" for code in failed if code in CODES]
            raise FederationError(
                "too few sites agreed to the roster, so nothing can be summed under masks",
                expected=f"at least {roster.least} of {len(self.sites)}",
                got=f"{agreed}; others failed with {', '.join(failed)}" if failed else agreed,
                fix="; ".join(["read each site's own log", *means]),
            )
        self._roster = roster
        return roster
