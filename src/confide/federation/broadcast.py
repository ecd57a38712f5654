"""Weights down and updates up: what sites have cached, changed rows, and differences in codes.

An ask holds the common weights in its field `weights`. The server hands them out in one of four
forms, each with the digest of the weights that it gives:

- *whole*, to a site that has neither these weights nor those before (those of round 1 in float16,
  if codes follow);
- as a *difference* in codes (`confide.federation.quantising`) from the weights before, whose digest
  it names;
- as the digest alone, to a site that has them;
- as a seed, if they are those before round 1 and drawn from it (`?first`): a site has the form of
  the model, and draws the same. One that does not arrive at the digest is given them whole.

Weights that may be asked about again, those of the best round so far, a site keeps beside the last
ones: an ask that gives them says so (`?keep`). So the model that is tested at the end need not be
sent again.

Differences can be exact because the server rounds first (`Broadcast.rounded`): after a round it
takes as the common weights what the sites will have, and adds what rounding left out to the next
round's. So the model that is scored is the one that is kept, and every site has the same bit for
bit.

A site remembers these weights in its process. After a restart it refuses a digest that it does
not know (`weights-missing`), and is given the weights whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from confide.errors import GuardError
from confide.federation import messages, quantising
from confide.federation.failures import Refusal
from confide.federation.memory import MemoryStore, as_array
from confide.federation.messages import Arrays
from confide.federation.quantising import (
    Quantisation,
    Quantiser,
    add_change,
    can_quantise,
    quantise,
)
from confide.federation.seals import digest
from confide.federation.steps import Step
from confide.seeds import derive_seed

Down = Literal["whole", "cached"] | Quantisation
"""Whole in every ask; whole, but no site is given the same twice; or differences in codes."""
COMMON = "weights"
"""The field of an ask that holds the common weights."""
GIVES, FROM, KEEP, FIRST = "?gives", "?from", "?keep", "?first"
"""The digest of the weights that an ask gives, of those that its codes start from, and of those
that are to be kept from now on in place of others; the seed from which they are drawn."""
MISSING = "weights-missing"
CACHED = "common"
"""Where a process keeps the weights that it was given, in its sites' scratch."""


@dataclass(frozen=True, slots=True)
class SentWeights:
    """Common weights with their digest; and the codes that lead to them from others, if any do."""

    weights: Arrays
    digest: bytes
    before: bytes = b""
    codes: Arrays | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """An ask without common weights that is made when it travels: a large one is not held."""

    make: Callable[[], object]


def digest_of_weights(weights: Arrays) -> bytes:
    """The digest of arrays: of their names, shapes, number types and bytes."""
    parts: list[bytes | memoryview] = []
    for name, array in sorted(weights.items()):
        parts += [name.encode(), f"{array.dtype.str} {array.shape}".encode()]
        parts.append(array.reshape(-1).view(np.uint8).data)
    return digest(*parts)


class Broadcast:
    """The server's side: rounds the common weights, and knows which site has which.

    `residual` is what rounding has left out so far; a run that goes on restores it.
    """

    def __init__(self, down: Down = "whole", *, share: float = 0.01) -> None:
        self._saves = down != "whole"
        self._codes = down not in ("whole", "cached")
        coding: Any = down if self._codes else "int8"  # the others need none
        self._quantiser = Quantiser(coding, share)
        self.residual: Arrays = {}
        self._now: SentWeights | None = None
        self._whole: Arrays = {}  # the newest weights, as they travel whole
        self._first: tuple[bytes, int] | None = None  # the first weights' digest and seed
        self._unlike: set[str] = set()  # sites that draw others from it
        self._pin = b""  # the digest of the weights that sites are to keep
        self._cached: dict[str, bytes] = {}
        self._pinned: dict[str, bytes] = {}
        self._on_the_way: dict[str, tuple[bytes, bool, bool]] = {}

    def begin(self, weights: Arrays, *, seed: int | None = None) -> Arrays:
        """The common weights before round 1 as sites will have them: codes start in float16.

        `seed` is that from which they were drawn, if they were.
        """
        begun = weights
        if not self._codes or not _is_like(weights, weights):
            self.go_on(weights)
        else:
            halves = {name: array.astype(np.float16) for name, array in weights.items()}
            begun = _singles(halves)
            self.go_on(
                begun, residual={name: array - begun[name] for name, array in weights.items()}
            )
            self._whole = halves
        if self._now is not None and seed is not None:
            self._first = self._now.digest, seed
        return begun

    def go_on(self, weights: Arrays, *, residual: Arrays | None = None) -> None:
        """Go on from these common weights; `residual` is what rounding has left out until now."""
        self.residual = dict(residual or {})
        self._whole = weights
        if self._saves:
            self._now = SentWeights(weights, digest_of_weights(weights))

    def rounded(self, before: Arrays, after: Arrays) -> Arrays:
        """The common weights after a round as sites will have them; they now have `before`.

        What rounding leaves out is added to the weights of the next round. Weights in another
        number type than float32 are not rounded.
        """
        if not self._codes or not _is_like(before, after):
            self.go_on(after)
            return after
        if self._now is None or not _same(self._now.weights, before):
            self.go_on(before)
        assert self._now is not None, "it goes on from the weights before"
        sent: Arrays = {}
        weights: Arrays = {}
        for names in self._quantiser.together(after):
            wanted = {name: after[name] + self.residual.pop(name, np.float32(0)) for name in names}
            found = quantise({name: wanted[name] - before[name] for name in names}, self._quantiser)
            sent |= found.sent
            weights |= add_change({name: before[name] for name in names}, found.change)
            self.residual |= {name: wanted[name] - weights[name] for name in names}
        weights = {name: weights[name] for name in after}
        self._now = SentWeights(weights, digest_of_weights(weights), self._now.digest, sent)
        self._whole = weights
        return weights

    def packed(self, ask: Any, sites: Iterable[str]) -> Any:
        """The ask as it travels to all of these sites alike; it is on its way to them from now on.

        An ask travels as it is if it holds no weights, or others than the common ones.
        """
        if not self._saves or not _holds_common(ask):
            return ask
        given = self._now
        if given is None or not _same(given.weights, getattr(ask, COMMON)):
            return self._again(ask, sites)
        names = list(sites)
        keep = self._pin == given.digest and any(self._pinned.get(n) != self._pin for n in names)
        has = {self._cached.get(name, b"") for name in names}
        drawn = self._drawn(given, has, names)
        self._on_the_way |= dict.fromkeys(names, (given.digest, keep, drawn is not None))
        sent: Arrays = {GIVES: as_array(given.digest)}
        if has == {given.digest}:
            pass
        elif drawn is not None:
            sent[FIRST] = as_array(drawn.to_bytes(8, "big"))
        elif given.codes is not None and has <= {given.before, given.digest}:
            sent |= {FROM: as_array(given.before), **given.codes}
        else:
            sent |= self._whole
        if keep:
            sent[KEEP] = as_array(given.digest)
        return replace(ask, **{COMMON: sent})

    def _drawn(self, given: SentWeights, has: set[bytes], names: Iterable[str]) -> int | None:
        """The seed that gives these sites the weights, where they have none; None if none does."""
        first = self._first
        fits = first is not None and first[0] == given.digest and has <= {b"", given.digest}
        return first[1] if first and fits and self._unlike.isdisjoint(names) else None

    def keep(self, weights: Arrays) -> None:
        """Let sites keep these weights, if they are the common ones, until they keep others."""
        if self._now is not None and _same(self._now.weights, weights):
            self._pin = self._now.digest

    def _again(self, ask: Any, sites: Iterable[str]) -> Any:
        """An ask about other weights than the common ones: as it is, or about those that are kept.

        All of these sites have to keep them.
        """
        if not self._pin or {self._pinned.get(name) for name in sites} != {self._pin}:
            return ask
        if digest_of_weights(getattr(ask, COMMON)) != self._pin:
            return ask
        return replace(ask, **{COMMON: {GIVES: as_array(self._pin)}})

    def encoded(
        self, step: Step, asks: Mapping[str, object]
    ) -> Iterator[tuple[str, bytes | messages.Pieces, list[messages.FieldSize]]]:
        """Each site's ask as it travels, and the sizes of its fields.

        Each distinct ask is encoded once: a broadcast is one block of bytes for all sites. A large
        one is its pieces, so that it holds the weights themselves and not a copy.
        """
        done: dict[
            tuple[int, bytes, bytes], tuple[bytes | messages.Pieces, list[messages.FieldSize]]
        ] = {}
        for site, ask in asks.items():
            alike = id(ask), self._cached.get(site, b""), self._pinned.get(site, b"")
            packed = None if isinstance(ask, Later) else self.packed(ask, [site])
            if alike not in done:
                packed = ask.make() if isinstance(ask, Later) else packed
                data = messages.encode_large(packed)
                messages.check_size(data, messages.limits_of(step.ask))
                done[alike] = data, messages.sizes(packed, len(data))
            yield site, *done[alike]

    def answered(self, site: str) -> None:
        """Note that a site has answered, and so has what was on the way to it."""
        if site in self._on_the_way:
            self._cached[site], keep, _ = self._on_the_way.pop(site)
            if keep:
                self._pinned[site] = self._cached[site]

    def lost(self, site: str, ask: object) -> bool:
        """Note that a site has no weights; whether this ask would now travel in another form."""
        _, _, drawn = self._on_the_way.pop(site, (b"", False, False))
        if drawn:
            self._unlike.add(site)
        had = self._cached.pop(site, None), self._pinned.pop(site, None)
        return (drawn or any(had)) and _holds_common(ask)


class CachedWeights(dict[bytes, Arrays]):
    """Weights that a process was given, by digest, the newest last; `kept` are not forgotten."""

    kept: bytes = b""

    def hold(self, gives: bytes, weights: Arrays, *, keep: bool) -> None:
        """Hold these weights, those before them, and those to keep: maybe these, from now on."""
        self.kept = gives if keep else self.kept
        others = [one for one in self if one not in (gives, self.kept)]
        for old in others[:-1]:
            del self[old]
        self.pop(gives, None)
        self[gives] = weights


def whole(ask: Any, held: CachedWeights, *, draws: Callable[[int], Arrays] | None = None) -> Any:
    """The ask with whole weights, at a site; `held` are the weights that its process was given.

    The last two are held, and those to keep. `draws` gives a model's first weights by their seed.
    Raises Refusal if the ask starts from weights that are not there, or the site draws others from
    the seed (`weights-missing`), or the ask does not give what it says.
    """
    if not _holds_common(ask) or GIVES not in getattr(ask, COMMON):
        return ask
    sent = dict(getattr(ask, COMMON))
    gives, start = _digest_in(sent.pop(GIVES)), sent.pop(FROM, None)
    keep = KEEP in sent
    if keep and _digest_in(sent.pop(KEEP)) != gives:
        raise Refusal("bad-ask")
    seed = sent.pop(FIRST, None)
    if gives in held:
        weights = held[gives]
    elif seed is not None:
        weights = _drawn_from(seed, gives, draws)
    elif start is None and not sent:
        raise Refusal(MISSING)
    else:
        weights = _singles(sent) if start is None else _from(held, _digest_in(start), sent)
        if digest_of_weights(weights) != gives:
            raise Refusal("bad-ask")
    held.hold(gives, weights, keep=keep)
    return replace(ask, **{COMMON: weights})


def _drawn_from(seed: np.ndarray, gives: bytes, draws: Callable[[int], Arrays] | None) -> Arrays:
    """The weights of this digest that the seed gives, in float32 or rounded to float16."""
    if seed.dtype != np.uint8 or seed.shape != (8,):
        raise Refusal("bad-ask")
    if draws is not None:
        found = draws(int.from_bytes(seed.tobytes(), "big"))
        for weights in (found, _singles({n: a.astype(np.float16) for n, a in found.items()})):
            if digest_of_weights(weights) == gives:
                return weights
    raise Refusal(MISSING)


def _holds_common(ask: object) -> bool:
    return isinstance(getattr(ask, COMMON, None), dict)


def _singles(sent: Arrays) -> Arrays:
    """Weights that came whole: those in float16 as float32."""
    return {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in sent.items()}


def _from(held: Mapping[bytes, Arrays], start: bytes, codes: Arrays) -> Arrays:
    if start not in held:
        raise Refusal(MISSING)
    before = held[start]
    try:
        change = quantising.dequantise(codes, {name: array.shape for name, array in before.items()})
    except GuardError as error:
        raise Refusal("bad-ask") from error
    return add_change(before, change)


def _is_like(before: Arrays, after: Arrays) -> bool:
    """Return whether these are float32 of the same names and shapes."""
    shapes = [{n: a.shape for n, a in both.items()} for both in (before, after)]
    return shapes[0] == shapes[1] and all(one.dtype == np.float32 for one in after.values())


def _same(one: Arrays, other: Arrays) -> bool:
    return one is other or (
        one.keys() == other.keys() and all(other[name] is array for name, array in one.items())
    )


def _digest_in(said: np.ndarray) -> bytes:
    if said.dtype != np.uint8 or said.shape != (32,):
        raise Refusal("bad-ask")
    return said.tobytes()


# --- Changed rows and quantised updates
#
# A site's reply leaves with changed rows only, or with changes in codes.
#
# What coarse codes leave out of a change is added to the next one (`Quantiser.loses_much`). It lies
# in the site's memory, in versions as all of it does: an ask that comes again gets the same reply.


Up = Literal["rows"] | Quantisation
"""Changed rows as they are, or all changes in codes."""


@dataclass(frozen=True)
class Left:
    """The residuals so far, by step and array: what codes left out; never sent."""

    changes: Arrays = messages.carries("rest of the changes")


class Uploading:
    """Makes replies into what travels, for one site and run; `most` is the site's `max_norm`."""

    def __init__(
        self,
        up: Up = "rows",
        *,
        share: float = 0.01,
        memory: MemoryStore[Left] | None = None,
        most: float | None = None,
    ) -> None:
        self._quantiser = None if up == "rows" else Quantiser(up, share)
        self._memory = memory
        self._most = math.inf if most is None else most

    def after(self, round: int, step: Step) -> bool:
        """Go back to the residuals as this turn left them; False if they are not there."""
        quantiser = self._quantiser
        if quantiser is None or not can_quantise(step) or not quantiser.loses_much:
            return True
        return self._memory is None or self._memory.after(round, step.name)

    def sent(
        self, step: Step, ask: object, reply: Any, *, round: int, seed: int
    ) -> tuple[object, Callable[[], None]]:
        """The reply as it travels, and what settles it. Raises GuardError: not finite."""
        quantiser = self._quantiser
        if quantiser is None or not can_quantise(step):
            return quantising.drop_unchanged_rows(step, ask, reply), lambda: None
        memory = self._memory if quantiser.loses_much else None
        before = memory.before(round, step.name) if memory is not None else None
        every = before.changes if before is not None else {}
        start = f"{step.name}/"
        left = {name.removeprefix(start): a for name, a in every.items() if name.startswith(start)}
        draws = None if memory is not None else derive_seed(seed, "codes")
        said, codes = quantising.quantise_reply(
            step, ask, reply, quantiser=quantiser, seed=draws, residual=left, most=self._most
        )
        if memory is None:
            return said, lambda: None
        after = Left({**every, **{start + name: rest for name, rest in codes.residual.items()}})
        return said, lambda: memory.commit(round, step.name, after)
