"""The federation: the sites as the server sees them, and how it asks them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.errors import ConfideError, FederationError, GuardError, QuorumError, SiteFault
from confide.federation.broadcast import MISSING, Broadcast
from confide.federation.combining import (
    PLAIN,
    TOO_FAR,
    Combining,
    Pile,
    Total,
    add_reply,
    change_norm,
    fewest_left,
    mismatched_field,
    reply_form,
)
from confide.federation.events import Event, Watcher, unwatched
from confide.federation.failures import BY_THE_ENGINE, Failure, blaming, fault, refused
from confide.federation.guards import check_reply, reply_limits
from confide.federation.ledger import Ledger
from confide.federation.memory import Spool
from confide.federation.messages import decode, sizes, values_of
from confide.federation.quantising import restore_reply
from confide.federation.steps import Delivery, Engine, Step, check_learnt
from confide.seeds import derive_seed

if TYPE_CHECKING:
    from confide.federation.secure.server import Summing

# --- The fewest sites, and the error for too few


def round_half_up(number: float) -> int:
    """The nearest integer; .5 always rounds up (Python rounds it to even)."""
    return int(number + 0.5)


def too_few(
    step: str,
    answered: int,
    need: int,
    *,
    round: int,
    faults: Iterable[SiteFault],
    of: int = 0,
    empty: int = 0,
    how: str = "",
) -> QuorumError:
    """The error for a step that too few sites answered, with this round's faults.

    `of` sites were asked and `empty` replies held nothing; without `of`, the way in which replies
    are combined (`how`) needs more.
    """
    own = tuple(fault for fault in faults if fault.round == round)
    expected = f"at least {need} of {of}"
    fix = "repair the sites that failed and resume, or lower federation.at_least"
    if not of:
        expected = f"at least {need}, since combine = {how!r}"
        fix = (
            "ask more sites (federation.fraction), repair those that failed and resume, or set"
            ' federation.combine to "clipped" or "mean"'
        )
    said = [*map(str, own)]
    if empty:
        said.append(f"{empty} had nothing that could be summed: the logs of the sites say which")
    error = QuorumError(
        f"step {step}, round {round}: too few sites answered",
        expected=expected,
        got=f"{answered} ({'; '.join(said)})",
        fix=fix,
    )
    error.faults = own
    return error


# --- The order of replies


def in_order(deliveries: Iterable[Delivery], asked: Iterable[str]) -> Iterator[Delivery]:
    """Deliveries in the order of the sites' names; an early one waits for those before it.

    Large ones wait on the disk, for as many sites may be early. Raises RunError if that is full.
    """
    waiting: dict[str, tuple[Delivery, tuple[int, int]]] = {}
    order = iter(sorted(asked))
    turn = next(order, None)
    with closing(Spool()) as aside:
        for delivery in deliveries:
            if delivery.site == turn:
                yield delivery
                turn = next(order, None)
            else:
                place = aside.put(delivery.reply)
                waiting[delivery.site] = replace(delivery, reply=b""), place
            del delivery  # not to be held while the next one comes
            while turn in waiting:
                early, place = waiting.pop(turn)
                yield replace(early, reply=aside.get(*place))
                turn = next(order, None)


Replies = Generator[tuple[str, Any], None, None]
"""Sites and their replies."""


class Federation:
    """Asks sites, checks their replies, and notes every message in the ledger.

    Args:
        engine: carries the messages.
        seed: the run's seed.
        ledger: where every message is noted.
        at_least: how many sites must answer an ask; 0 means all that were asked.
        timeout: seconds that a site may take; None: no limit. The sequential engine ignores it.
        sites: some of the engine's sites; None means all.
        watch: is told of every ask and reply.
        combining: how summed replies become one, and which are too far off to count.

    `took_part` holds the sites whose replies the server has learnt from; the caller empties it.
    `summing`, if it is set, sums replies that the server may not see one by one. `broadcast` hands
    out the common weights.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        seed: int,
        ledger: Ledger,
        at_least: int = 0,
        timeout: float | None = None,
        sites: Sequence[str] | None = None,
        watch: Watcher = unwatched,
        combining: Combining = PLAIN,
    ) -> None:
        self.summing: Summing | None = None
        self.broadcast = Broadcast()
        self._engine = engine
        self._ledger = ledger
        self._at_least = at_least
        self._timeout = timeout
        self._watch = watch
        self._combining = combining
        self.took_part: set[str] = set()
        self.seed = seed
        self.sites = tuple(sorted(engine.sites if sites is None else sites))
        self.faults: list[SiteFault] = []
        self._all = len(self.sites)
        self._left_out: set[str] = set()
        self.compute_seconds = 0.0
        self.seconds_by_site = dict.fromkeys(self.sites, 0.0)

    def draw(self, fraction: float, round: int) -> tuple[str, ...]:
        """The sites that take part in a round: max(1, fraction · K) of K, drawn by the seed."""
        count = max(1, round_half_up(fraction * len(self.sites)))
        generator = np.random.default_rng(derive_seed(self.seed, "draw", round))
        chosen = generator.choice(len(self.sites), size=count, replace=False)
        return tuple(self.sites[place] for place in sorted(chosen))

    def ask(
        self,
        step: Step,
        ask: object,
        *,
        round: int,
        sites: Sequence[str] | None = None,
        at_least: int | None = None,
    ) -> dict[str, Any]:
        """Every site's reply, sorted by site. `ask` is one message for all, or a mapping by site.

        Sites that fail are noted in `faults` and left out. Raises QuorumError if fewer than
        `at_least` answered, FederationError if the step may only be summed.
        """
        if step.summed:
            raise FederationError(f"step {step.name} may only be summed")
        names, asks = self._addressed(ask, sites)
        replies = dict(self._replies(step, asks, round=round))
        out: dict[str, str] = {}
        if step.learnt is not None:  # the method looks at each: those too far off are left out
            norms = {}
            for site, reply in list(replies.items()):
                try:
                    with blaming(site, step=step.name, round=round):
                        norms[site] = change_norm(step.learnt, asks[site], reply)
                except SiteFault as error:
                    self._failed(error)
                    del replies[site]
            out = self._combining.too_far(norms, slack=step.learnt.slack)
            for site, why in out.items():
                self._failed(refused(why, site=site, step=step.name, round=round, code=TOO_FAR))
                del replies[site]
            self.took_part.update(replies)
        answered = len(replies)
        self._settle(step, names, answered, round=round, at_least=at_least, outliers=len(out))
        return dict(sorted(replies.items()))

    def sum(
        self, step: Step, ask: object, *, round: int, sites: Sequence[str] | None = None
    ) -> Any:
        """The sum of the replies, field by field: floats in float64, integers in int64.

        The same bit for bit whoever answers first: replies are added in the order of the sites'
        names. If they are combined in another way (`Combining`), the sum is as if every site had
        learnt the combined change. Raises QuorumError if fewer than `at_least` answered.
        """
        if not step.summed:
            raise FederationError(f"step {step.name} was not declared as one that is summed")
        names, asks = self._addressed(ask, sites)
        if self.summing is not None:
            return step.reply(**self._in_lanes(step, ask, names, round=round))
        together = self._combining.looks_at(step, len(names))
        heard = self._replies(step, asks, round=round, ordered=not together)
        with closing(heard):
            if together:
                total, answered, outliers = self._piled(step, heard, asks, round=round)
            else:
                (total, answered), outliers = self._added(step, heard, round=round), 0
        self._settle(step, names, answered, round=round, outliers=outliers)
        return step.reply(**total)

    def tally(self, step: Step, ask: object, *, round: int, labels: Sequence[str]) -> Any:
        """The counts of all sites together, by a step with `tables`; only with `summing`."""
        assert step.tables is not None, "only counts can be tallied"
        total = self._in_lanes(step, ask, [*self.sites], round=round, labels=labels)
        return step.tables.back(total["tables"], labels)

    def _in_lanes(
        self, step: Step, ask: object, names: list[str], *, round: int, labels: Sequence[str] = ()
    ) -> Total:
        """The sum of the replies as whole numbers; sites that are lost are asked nothing more."""
        from confide.federation.secure.server import Exchange
        from confide.federation.secure.steps import is_summed

        if (summing := self.summing) is None or not is_summed(step) or isinstance(ask, Mapping):
            raise FederationError(f"step {step.name} cannot be summed unseen")
        exchange = Exchange(round, self._replies, self._failed, pack=self.broadcast.packed)
        found = summing.sum(
            step, ask, names, exchange=exchange, combining=self._combining, labels=labels
        )
        self.took_part.update(found.counted if step.learnt else ())
        self._settle(
            step,
            names,
            found.answered,
            round=round,
            empty=found.empty,
            outliers=len(found.outliers),
        )
        # a set that grew again would tell of the sites that came back
        self.go_on_without(sorted(set(names) - set(found.sites)))
        return found.total

    def _added(self, step: Step, heard: Replies, *, round: int) -> tuple[Total, int]:
        """The sum of the replies, each added as it comes, and their number."""
        total: Total = {}
        first, answered = None, 0
        for site, reply in heard:
            try:
                with blaming(site, step=step.name, round=round):
                    form = reply_form(reply)
                    first = first or form
                    if field := mismatched_field(form, first):
                        raise GuardError(f"{field} differs in form from that of other sites")
                    add_reply(total, reply)
            except SiteFault as error:
                self._failed(error)
                continue
            finally:
                del reply  # not to be held while the next one comes
            answered += 1
            if step.learnt is not None:
                self.took_part.add(site)
        return total, answered

    def _piled(
        self, step: Step, heard: Replies, asks: Mapping[str, object], *, round: int
    ) -> tuple[Total, int, int]:
        """Combine the replies once all are there to be compared; also counts them and outliers."""
        with closing(Pile(step, self._combining)) as pile:
            for site, reply in heard:
                try:
                    with blaming(site, step=step.name, round=round):
                        pile.put(site, asks[site], reply)
                except SiteFault as error:
                    self._failed(error)
                del reply  # not to be held while the next one comes
            out = pile.leave_out()
            for site, (code, why) in out.items():
                self._failed(refused(why, site=site, step=step.name, round=round, code=code))
            answered = len(pile.sites)
            if self._combining.combines(step) and answered < self._combining.needed:
                raise too_few(
                    step.name,
                    answered,
                    self._combining.needed,
                    round=round,
                    faults=self.faults,
                    how=self._combining.how,
                )
            self.took_part.update(pile.sites)
            return pile.total(), answered, sum(code == TOO_FAR for code, _ in out.values())

    def relay(
        self, step: Step, ask: Any, *, round: int, sites: Sequence[str], then: Callable[..., Any]
    ) -> dict[str, Any]:
        """Every site's reply, asked in the order given, each `then(ask, reply)` of the one before.

        A site that fails is passed over. Raises QuorumError if fewer than `at_least` answered.
        """
        if step.summed:
            raise FederationError(f"step {step.name} may only be summed")
        replies: dict[str, Any] = {}
        for site in sites:
            for name, reply in self._replies(step, self._addressed(ask, [site])[1], round=round):
                try:
                    with blaming(name, step=step.name, round=round):
                        ask = then(ask, reply)
                except SiteFault as error:
                    self._failed(error)
                    continue
                self.took_part.add(name)
                replies[name] = reply
        self._settle(step, list(sites), len(replies), round=round)
        return replies

    def enough(self, count: int) -> bool:
        """Return whether `count` of the first sites are enough to continue."""
        return count >= (min(self._at_least, self._all) if self._at_least else self._all)

    def leave_out(self, fault: SiteFault) -> None:
        """Note a fault, and ask its site nothing more."""
        self._failed(fault)
        self.go_on_without([fault.site])

    def go_on_without(self, sites: Sequence[str]) -> None:
        """Ask these sites nothing more, even where a method names them."""
        self._left_out |= set(sites)
        self.sites = tuple(site for site in self.sites if site not in self._left_out)

    def admit(self, step: Step, ask: object, *, sites: Sequence[str]) -> dict[str, Any]:
        """The replies of sites that missed the start, to what the others were asked there.

        One that fails is asked nothing more.
        """
        replies = dict(self._replies(step, dict.fromkeys(sites, ask), round=0))
        self.go_on_without([site for site in sites if site not in replies])
        return dict(sorted(replies.items()))

    def answered(self, sites: Sequence[str], step: Step, *, round: int) -> list[str]:
        """Those of the sites that did not fail at this step of this round."""
        out = {one.site for one in self.faults if (one.round, one.step) == (round, step.name)}
        return [site for site in sites if site not in out and site not in self._left_out]

    def take_faults(self) -> list[SiteFault]:
        """The faults since the last call."""
        faults, self.faults = self.faults, []
        return faults

    def _addressed(
        self, ask: object, sites: Sequence[str] | None
    ) -> tuple[list[str], dict[str, object]]:
        """The sites to ask, sorted, and the ask for each. Raises FederationError: no such site."""
        named = ask if isinstance(ask, Mapping) else self.sites if sites is None else sites
        names = sorted(set(named) - self._left_out)
        if unknown := sorted(set(names) - set(self.sites)):
            raise FederationError(
                f"there is no site {unknown[0]!r} in this federation",
                expected=", ".join(self.sites),
            )
        return names, {name: ask[name] if isinstance(ask, Mapping) else ask for name in names}

    def _replies(
        self,
        step: Step,
        asks: Mapping[str, object],
        *,
        round: int,
        ordered: bool = False,
        failed: Callable[[str], None] = lambda code: None,
    ) -> Replies:
        """Each good reply with its site, as they come, or `ordered` by site; failures are noted.

        `failed` is told the code of each. A site that lacks the weights which an ask starts from is
        asked again, with whole ones.
        """
        again: dict[str, object] = {}
        encoded = {}
        for site, sent, rows in self.broadcast.encoded(step, asks):
            encoded[site] = sent
            self._ledger.record(
                rows, round=round, step=step.name, direction="down", site=site, seen="by the site"
            )
            self._watch(Event("ask", round, site=site, step=step.name))
        deliveries = self._engine.deliver(step.name, round, asks=encoded, timeout=self._timeout)
        with closing(deliveries):  # a caller that stops early must not keep the engine waiting
            for data in in_order(deliveries, asks) if ordered else deliveries:
                site = data.site
                self.compute_seconds += data.seconds
                self.seconds_by_site[site] += data.seconds
                try:
                    reply = self._open(step, data, asks[site], round=round)
                except SiteFault as error:
                    if error.code == MISSING and self.broadcast.lost(site, asks[site]):
                        again[site] = asks[site]
                        continue
                    self._failed(error)
                    failed(error.code)
                    continue
                self.broadcast.answered(site)
                said = {} if step.summed else {name: one for name, _, one in values_of(reply)}
                self._watch(Event("reply", round, site=site, step=step.name, loss=said.get("loss")))
                yield site, reply
                del data, reply  # no reply is held while the next one comes
        if again:
            yield from self._replies(step, again, round=round, failed=failed)

    def _failed(self, fault: SiteFault) -> None:
        self.faults.append(fault)
        self._watch(
            Event("failed", fault.round, site=fault.site, step=fault.step, message=str(fault))
        )

    def _open(self, step: Step, delivery: Delivery, ask: object, *, round: int) -> object:
        """The delivered reply, noted in the ledger and checked. Raises SiteFault."""
        site, data, limits = delivery.site, delivery.reply, reply_limits(step, ask)
        with blaming(site, step=step.name, round=round):
            message: object = decode((step.reply, Failure), data, limits=limits)
        if delivery.heard:
            self._ledger.record(
                sizes(message, len(data)),
                round=round,
                step=step.name,
                direction="up",
                site=site,
                seen="one by one" if isinstance(message, Failure) else step.seen_as,
            )
        if isinstance(message, Failure):
            if delivery.heard and message.code in BY_THE_ENGINE:
                message = replace(message, code="error")  # a site that answers is not lost
            raise fault(message, site=site, step=step.name, round=round)
        with blaming(site, step=step.name, round=round):
            message = restore_reply(step, ask, message)
            check_reply(step, ask, message)
            check_learnt(step, message)
        return message

    def _settle(
        self,
        step: Step,
        names: list[str],
        answered: int,
        *,
        round: int,
        at_least: int | None = None,
        empty: int = 0,
        outliers: int = 0,
    ) -> None:
        need = self._at_least if at_least is None else at_least
        need = min(need, len(names)) if need else fewest_left(len(names), outliers)
        if answered < need:
            raise too_few(
                step.name,
                answered,
                need,
                round=round,
                faults=self.faults,
                of=len(names),
                empty=empty,
            )


# --- Agreement of sites
#
# All sites must have some things in common; a run continues without the sites that differ.
#
# One site with a different key, or one that claims to have one, must not end the run for the
# others.


DIFFERS = "differs"
"""The code of a site that differs from the others where all must be the same."""


@dataclass(frozen=True)
class Parted:
    """Sites that do not agree: the `differing` ones, and all `groups`, the largest first.

    `differing` is empty if the largest groups are equally large.
    """

    differing: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]

    def who(self, one: str, tied: str) -> str:
        """`one` with these sites for its {}; where nobody can tell them, `tied`: the groups."""
        if not self.differing:
            return f"{tied}: {' | '.join(map(', '.join, self.groups))}"
        return one.format(", ".join(self.differing))


def alike(
    federation: Federation,
    said: Mapping[str, Hashable],
    *,
    step: Step,
    why: str,
    error: Callable[[Parted], ConfideError],
    ours: Hashable | None = None,
) -> list[str]:
    """The sites that say what most sites say, or what the server says (`ours`), sorted.

    The others become faults of round 0, each by name and with the words `why`, and the run
    continues without them. Raises `error` if fewer than `at_least` sites would be left, or if the
    largest groups are equally large.
    """
    groups: dict[Hashable, list[str]] = {}
    for site, value in sorted(said.items()):
        groups.setdefault(value, []).append(site)
    by_size = sorted(groups.values(), key=len, reverse=True)
    if ours is not None:
        kept = groups.get(ours, [])
    else:
        tied = len(by_size) > 1 and len(by_size[0]) == len(by_size[1])
        kept = by_size[0] if by_size and not tied else []
    differing = tuple(sorted(said.keys() - set(kept))) if kept or ours is not None else ()
    if len(kept) == len(said):
        return kept
    if not kept or not federation.enough(len(kept)):
        raise error(Parted(differing, tuple(map(tuple, by_size))))
    for site in differing:
        federation.leave_out(SiteFault(site=site, step=step.name, round=0, code=DIFFERS, what=why))
    return kept
