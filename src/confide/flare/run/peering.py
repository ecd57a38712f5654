"""The other sites of a run with secure sums, as a site knows them: cards, and earlier rosters.

Each site's identity key is pinned when it is first met, as the server's and the lead's are; a site
whose file says `compared` sums only with sites whose fingerprints people have compared. Sums over
two sets of sites that differ by few sites tell of these few, so a roster close to an earlier one is
refused until the site's agreement names exactly these sites.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.federation.digests import digest
from confide.federation.failures import Refusal
from confide.federation.files import write_of_run
from confide.federation.secure.member import Member
from confide.federation.secure.messages import Meet
from confide.federation.secure.repeats import SUMS, Sets
from confide.federation.secure.roster import colluders
from confide.flare.kits.peers import Card, Place
from confide.flare.run.joining import Join
from confide.settings import Settings, SiteFile
from confide.settings.consentfile import Agreement
from confide.userfiles import json_of, text_of

ROSTERS, ACCOUNTS = "rosters.txt", "accounts.json"
_ACCOUNT = re.compile(r"([1-9][0-9]{0,14}) ([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True)
class Heads:
    """How each peer's account of noise stood when it last greeted, in a folder of the site's.

    An account that was put back from a backup has fewer charges than its peers have seen, or as
    many and another digest. What such a site spends again is counted nowhere, so nobody sums with
    it.
    """

    folder: Path

    def note(self, shown: Mapping[str, str], names: Sequence[str]) -> None:
        """Remember accounts, by identity. Raises Refusal for one that is older than before."""
        path = self.folder / ACCOUNTS
        before: dict[str, str] = json_of(text_of(path)) if path.exists() else {}
        for name, (identity, account) in zip(names, shown.items(), strict=True):
            old, new = _read(before.get(identity, ""), name), _read(account, name)
            if new[0] < old[0] or (new[0] == old[0] and new != old):
                raise Refusal("older-account", name)
        now = before | {identity: account for identity, account in shown.items() if account}
        if now != before:
            write_of_run(path, json.dumps(now, sort_keys=True).encode())


def _read(account: str, name: str) -> tuple[int, str]:
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

    place: Place
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
        Heads(self.folder).note(dict(zip(ask.identities, ask.accounts, strict=True)), ask.names)

    def _note(self, roster: dict[str, str]) -> None:
        """Note the roster. Raises Refusal if it is too close to an earlier one."""
        path = self.folder / ROSTERS
        before = text_of(path).splitlines() if path.exists() else []
        said = " ".join(sorted(roster.values()))
        if said in before:
            return
        now = set(roster.values())
        if not self.named and any(len(now ^ set(one.split())) < self.apart for one in before):
            raise Refusal("near-roster")
        write_of_run(path, "\n".join([*before, said, ""]).encode())


def member_of(
    place: Place | None, file: SiteFile, ask: Join, *, agreement: Agreement, settings: Settings
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
        pinned=peering,
        colluding=file.colluding or colluders(len(sites)),
        least=max(file.guards.min_sites, agreement.at_least),
        binding=digest(b"received", ask.settings.encode(), ask.wire.encode()),
        record=Sets(folder),
        run=ask.run,
        card=place.card.encode(),
        group=settings.federation.groups,
    )
