"""Members of sums, and a server played by hand that may tell each of them something else."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.federation.seals import digest
from confide.federation.secure.crypto import (
    SHARE,
    add_streams,
    box_info,
    derive_key,
    join_shares,
    open_box,
    own_info,
    pair_info,
    public_key,
    shared_secret,
)
from confide.federation.secure.lanes import EMPTY, LaneLayout, LanePart, Lanes
from confide.federation.secure.messages import (
    Agree,
    Greet,
    Mask,
    Meet,
    Offered,
    Opening,
    Roster,
    Shares,
    Unmask,
    roster_of,
    seed_commitment,
    set_statement,
    sum_context,
)
from confide.federation.secure.site import Member, Sets, SumAsk, SumTurn

RUN, BINDING, STEP = "run", b"b" * 32, "multiply"
COMMON = b"c" * 32
LAYOUT = LaneLayout(
    (
        LanePart(EMPTY, "", (), 8, 1.0),
        LanePart("weights", "a", (5,), 4, 2.0**27),
        LanePart("x", "", (3,), 2, 1.0),
    ),
    8.0,
)


class Forgetful(Sets):
    """A record that allows everything, so that nothing but the protocol is in the way."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def claim(self, turn: SumTurn, names: list[str]) -> None:
        """Write nothing down."""

    def fix(self, turn: SumTurn) -> None:
        """Write nothing down."""

    def fixed(self, turn: SumTurn) -> str:
        """Nothing was fixed."""
        return ""


class Noted(Forgetful):
    """A record that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[tuple[SumTurn, list[str]]] = []

    def claim(self, turn: SumTurn, names: list[str]) -> None:
        self.claims.append((turn, names))


def named(count: int) -> list[str]:
    return [f"site-{number:02d}" for number in range(1, count + 1)]


def member(name: str, **parts: Any) -> Member:
    """A site that believes everyone, unless `parts` say otherwise."""
    own = {"binding": BINDING, "record": Forgetful()}
    return Member(name, parts.pop("identity", None) or Ed25519PrivateKey.generate(), **own | parts)


def meeting(members: Sequence[Member], *, colluding: int, run: str = RUN) -> Meet:
    """What the server tells all of what each of them showed."""
    shown = [one.greet(Greet(run)) for one in members]
    return Meet(
        colluding=colluding,
        names=[one.name for one in members],
        identities=[one.identity for one in shown],
        box_keys=[one.box_key for one in shown],
        sign_keys=[one.sign_key for one in shown],
        signatures=[one.signature for one in shown],
        bindings=[one.binding for one in shown],
        cards=[one.card for one in shown],
        accounts=[one.account for one in shown],
    )


def random_lanes(layout: LaneLayout = LAYOUT) -> Lanes:
    """Numbers that nobody can guess."""
    return np.frombuffer(secrets.token_bytes(layout.length), np.uint8).copy()


def plus(layout: LaneLayout, vectors: Sequence[Lanes]) -> Lanes:
    """The sum, each lane modulo its size."""
    total = np.zeros(layout.length, np.uint8)
    for vector in vectors:
        for (own, width), (more, _) in zip(
            layout.by_width(total), layout.by_width(vector), strict=True
        ):
            own.view(f"<u{width}")[:] += more.view(f"<u{width}")
    return total


@dataclass
class Ring:
    """Sites that have met and have offered; `numbers` is what each of them is to add."""

    members: dict[str, Member]
    roster: Roster
    opening: Opening
    numbers: dict[str, Lanes]
    offers: dict[str, Offered]
    context: bytes
    layout: LaneLayout = LAYOUT
    settled: list[str] = field(default_factory=list)
    round: int = 1
    asked: bytes = b"ask"
    fresh: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.members)

    def inside(self, name: str) -> Any:
        """The present sum of a site, secrets and all: for colluders, and for tests to look at."""
        return self.members[name]._sum

    def mask_for(self, name: str, first: Sequence[str]) -> Mask:
        """The offers of `first` as the server tells them to one site."""
        names, offers = sorted(first), self.offers
        places = {
            sender: [one for one in self.roster.names if one != sender].index(name)
            for sender in names
            if sender != name
        }
        own = [offers[sender].boxes_O148[place] for sender, place in places.items()]
        return Mask(
            context=self.context.hex(),
            names=names,
            keys=[offers[one].key for one in names],
            commitments=[offers[one].commitment for one in names],
            boxes=[digest(offers[one].boxes_O148.tobytes()).hex() for one in names],
            marks=[digest(offers[one].marks_N64.tobytes()).hex() for one in names],
            signatures=[offers[one].signature for one in names],
            own_M148=np.array(own, np.uint8),
            own_marks_M64=np.array(
                [offers[one].marks_N64[self.roster.place(name) - 1] for one in places], np.uint8
            ),
        )

    def agree_on(self, names: Sequence[str]) -> Agree:
        return Agree(self.context.hex(), sorted(names))

    def unmask_with(self, signatures: Mapping[str, str]) -> Unmask:
        ordered = dict(sorted(signatures.items()))
        return Unmask(self.context.hex(), list(ordered), list(ordered.values()))

    def signed_by(self, name: str, first: Sequence[str], second: Sequence[str]) -> str:
        """A colluder's signature, over whatever the server wants."""
        keys = {one: self.offers[one].key for one in sorted(first)}
        said = set_statement(self.context, keys, sorted(second))
        session = self.members[name]._session
        assert session is not None
        return session.signer.sign(said).hex()

    def again(self) -> Ring:
        """The same ring after the same offers, as if nothing had been said since."""
        ring = replace(self, members={}, settled=[])
        for name, one in self.members.items():
            twin = copy(one)
            now = self.fresh[name]
            twin._sum = replace(
                now, lanes=now.lanes.copy(), offered={}, held={}, signed=None, said={}
            )
            ring.members[name] = twin
        return ring

    def keep(self) -> Ring:
        """Remember the offers for `again`."""
        self.fresh = {
            name: replace(self.inside(name), lanes=self.numbers[name].copy())
            for name in self.members
        }
        return self


def ring(
    count: int,
    colluding: int = 1,
    *,
    layout: LaneLayout = LAYOUT,
    round: int = 1,
    members: Sequence[Member] | None = None,
    ask: bytes = b"ask",
    attempt: int | None = None,
    numbers: Mapping[str, Lanes] | None = None,
    run: str = RUN,
) -> Ring:
    """Sites that have greeted, met and offered."""
    members = members or [member(name) for name in named(count)]
    meet = meeting(members, colluding=colluding, run=run)
    for one in members:
        one.meet(meet)
    roster = roster_of(meet, run=run, binding=BINDING)
    opening = Opening(
        ask_B=np.empty(0, np.uint8),
        roster=roster.id.hex(),
        group=False,
        attempt=secrets.randbits(62) if attempt is None else attempt,
        sites=len(members),
        examples=0.0,
        labels=[],
    )
    made = Ring(
        {one.name: one for one in members}, roster, opening, dict(numbers or {}), {}, b"", layout
    )
    made.round, made.asked = round, ask
    made.context = sum_context(
        digest(ask),
        roster.id,
        round=round,
        step=STEP,
        attempt=opening.attempt,
        layout=layout.digest,
        common=COMMON,
    )
    for name in made.members:
        made.numbers.setdefault(name, random_lanes(layout))
        offer(made, name)
    return made.keep()


def ask_of(made: Ring, **parts: Any) -> SumAsk:
    """What each site is asked first, unless `parts` say otherwise."""
    own = {"opening": made.opening, "layout": made.layout, **parts}
    return SumAsk(asked=digest(made.asked), common=COMMON, round=made.round, step=STEP, **own)


def offer(made: Ring, name: str) -> Offered:
    """Let a site offer (again)."""
    made.offers[name] = made.members[name].offer(
        ask_of(made), lanes=made.numbers[name].copy(), settle=lambda: made.settled.append(name)
    )
    return made.offers[name]


@dataclass
class Heard:
    """What a server has after a play: masked numbers, what it told, and the shares it was given."""

    told: dict[str, tuple[list[str], list[str]]]
    masked: dict[str, Lanes] = field(default_factory=dict)
    signed: dict[str, str] = field(default_factory=dict)
    shares: dict[str, Shares] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def honest_play(made: Ring, first: Sequence[str], second: Sequence[str]) -> Heard:
    """All four exchanges with one pair of sets for all."""
    heard = Heard({name: (sorted(first), sorted(second)) for name in first})
    for name in first:
        heard.masked[name] = made.members[name].mask(made.mask_for(name, first)).lanes_B
    for name in second:
        heard.signed[name] = made.members[name].agree(made.agree_on(second)).signature
    for name in second:
        heard.shares[name] = made.members[name].unmask(made.unmask_with(heard.signed))
    return heard


class Curious:
    """What a server can compute from what it heard and from what colluders know."""

    def __init__(self, made: Ring, heard: Heard, *, colluders: Sequence[str]) -> None:
        self._ring = made
        self._heard = heard
        self._colluders = list(colluders)
        self.honest = [name for name in made.names if name not in self._colluders]
        given = self._given()
        self.keys = {n: s for n in made.names if (s := self._joined(given[0][n])) is not None}
        self.keys = {
            n: s for n, s in self.keys.items() if public_key(s).hex() == made.offers[n].key
        }
        self.seeds = {n: s for n in made.names if (s := self._joined(given[1][n])) is not None}
        self.seeds = {n: s for n, s in self.seeds.items() if self._is_seed(n, s)}
        for name in self._colluders:
            own = made.inside(name) if made.inside(name).secret else made.fresh[name]
            self.keys[name], self.seeds[name] = own.secret, own.seed

    def _is_seed(self, name: str, seed: bytes) -> bool:
        made = self._ring
        return seed_commitment(made.context, seed).hex() == made.offers[name].commitment

    def _given(self) -> tuple[dict[str, dict[int, bytes]], dict[str, dict[int, bytes]]]:
        """Shares of keys and of seeds, by whose they are and by place."""
        made = self._ring
        keys: dict[str, dict[int, bytes]] = {name: {} for name in made.names}
        seeds: dict[str, dict[int, bytes]] = {name: {} for name in made.names}
        for holder, reply in self._heard.shares.items():
            first, second = self._heard.told[holder]
            for row, owner in enumerate(first):
                if reply.given_M[row]:
                    found = seeds if owner in second else keys
                    found[owner][made.roster.place(holder)] = reply.shares_M66[row].tobytes()
        for holder in self._colluders:
            session = made.members[holder]._session
            assert session is not None
            for owner in (name for name in made.names if name != holder):
                others = [one for one in made.roster.names if one != owner]
                box = made.offers[owner].boxes_O148[others.index(holder)].tobytes()
                key = shared_secret(session.box_secret, made.roster.peer(owner).box_key)
                offered = bytes.fromhex(made.offers[owner].key)
                info = box_info(made.context, owner, holder, offered=offered)
                inside = open_box(derive_key(key, info), box)
                if inside is not None:
                    keys[owner][made.roster.place(holder)] = inside[:SHARE]
                    seeds[owner][made.roster.place(holder)] = inside[SHARE:]
        return keys, seeds

    def _joined(self, shares: Mapping[int, bytes]) -> bytes | None:
        least = self._ring.roster.least
        if len(shares) < least:
            return None
        places = sorted(shares)[:least]
        return join_shares({place: shares[place] for place in places})

    def opened(self) -> dict[frozenset[str], Lanes]:
        """All sums over honest sites that can be computed, by the sites in them."""
        hidden = {name: self._hidden(name) for name in self.honest}
        found, left = {}, set(self.honest)
        while left:
            whole = self._around(min(left), hidden)
            left -= whole
            closed = all(
                name in self.seeds
                and name in self._heard.masked
                and all(name in hidden[other] for other in hidden[name])
                for name in whole
            )
            if closed:
                vectors = [self._bare(name, hidden[name]) for name in sorted(whole)]
                found[frozenset(whole)] = plus(self._ring.layout, vectors)
        return found

    def _hidden(self, name: str) -> set[str]:
        """With whom a site has masks that the server cannot compute."""
        if name in self.keys or name not in self._heard.masked:
            return set()
        first, _ = self._heard.told[name]
        return {one for one in first if one != name and one not in self.keys}

    def _around(self, start: str, hidden: Mapping[str, set[str]]) -> set[str]:
        whole, fringe = {start}, [start]
        while fringe:
            for other in hidden[fringe.pop()] - whole:
                whole.add(other)
                fringe.append(other)
        return whole

    def _bare(self, name: str, hidden: set[str]) -> Lanes:
        """A site's masked numbers without every mask that the server can compute."""
        made = self._ring
        lanes = self._heard.masked[name].copy()
        masks = [(derive_key(self.seeds[name], own_info(made.context)), -1)]
        for other in self._heard.told[name][0]:
            if other == name or other in hidden:
                continue
            one, two = (name, other) if name in self.keys else (other, name)
            key = shared_secret(self.keys[one], bytes.fromhex(made.offers[two].key))
            pair = derive_key(key, pair_info(made.context, name, other))
            masks.append((pair, -1 if name < other else 1))
        add_streams(made.layout.by_width(lanes), masks)
        return lanes
