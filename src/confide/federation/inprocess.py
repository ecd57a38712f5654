"""The embedded engine: all sites on one machine, one after another, through the same codec.

`SiteSpec` says how to make a site's host. The sequential engine makes hosts here, the engine of
`workers` makes them in its processes, and both give the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from confide.federation.engine import Delivery
from confide.federation.guards import Guards
from confide.federation.memory import MemoryStore
from confide.federation.secure.exchanges import Sums
from confide.federation.secure.hosting import SumHost
from confide.federation.secure.member import Member
from confide.federation.secure.primitives import fresh_signer
from confide.federation.secure.repeats import Sets
from confide.federation.secure.roster import Pinned
from confide.federation.site import Expects, Scratch, Site, SiteHost
from confide.federation.steps import Step
from confide.federation.uploading import Left, Up, Uploading
from confide.privacy.purse import PURSE, Purse
from confide.privacy.spending import Limit
from confide.text.document import Document


@dataclass(frozen=True)
class SiteSpec:
    """A site as plain data, before any process holds it: the fields of `Site`, and its folder."""

    name: str
    train: Sequence[Document]
    folder: Path
    dev: Sequence[Document] = ()
    test: Sequence[Document] = ()
    key_file: Path | None = None
    vectors: Path | None = None
    context: str | None = None
    tag_scheme: str | None = None
    knows: tuple[str, ...] = ()
    test_knows: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    guards: Guards = Guards()
    remote: bool = False

    @property
    def weight(self) -> int:
        """How much work the site is, measured in characters of training text."""
        return sum(len(document.text) for document in self.train)


def site_of(spec: SiteSpec, scratch: Scratch) -> Site:
    """The site itself; sites of one process share `scratch`."""
    common = {one.name: getattr(spec, one.name) for one in fields(spec) if one.name != "folder"}
    return Site(**common, scratch=scratch)


@dataclass(frozen=True)
class SumsWith:
    """How replies are summed; `binding` is the digest of what all sites received.

    `group`: the size of fixed groups that may be summed by themselves; 0: none.
    """

    sums: Sums = "plain"
    binding: bytes = b""
    group: int = 0


PLAINLY = SumsWith()


@dataclass(frozen=True)
class Hosting:
    """What all sites of a run share: the method's steps and memory, and the seed.

    Server and sites keep a checkpoint after every `every`-th round and after round `last`. `sums`:
    how replies are summed, and with what. `simulated`: the seed of an experiment whose sites draw
    nothing that cannot be repeated, and so keep nothing secret. `up`, `top`: how uploads travel
    where the server may see them, and the share of numbers that "top" sends. `expects`: what the
    settings make of every ask.
    """

    steps: Mapping[str, Step]
    memory: type
    seed: int
    every: int = 1
    last: int | None = None
    sums: SumsWith = PLAINLY
    simulated: int | None = None
    up: Up = "rows"
    top: float = 0.01
    expects: Expects | None = None

    def host(
        self,
        spec: SiteSpec,
        scratch: Scratch,
        *,
        member: Member | None = None,
        purse: Path | None = None,
    ) -> SiteHost:
        """A site, ready to answer.

        `member` is its part in secure sums, if it has keys of its own; otherwise it makes keys for
        this process, and believes all others'. `purse` is the folder of its account over all runs;
        by default this run has one of its own.
        """
        site = site_of(spec, scratch)
        site.log = spec.folder / "site.log"
        limit = Limit(spec.guards.max_epsilon, spec.guards.delta)
        made_of = b"" if self.simulated is None else f"{self.simulated}\0{spec.name}".encode()
        site.purse = Purse(purse or spec.folder / PURSE, limit, simulated=made_of)
        if self.sums.sums != "plain":
            site.member = member or Member(
                spec.name,
                fresh_signer(),
                pinned=Pinned(),
                least=spec.guards.min_sites,
                binding=self.sums.binding,
                record=Sets(spec.folder / "sums"),
                group=self.sums.group,
            )
        return SiteHost(
            site,
            self.steps,
            memory=MemoryStore(
                spec.folder / "memory", self.memory, every=self.every, last=self.last
            ),
            seed=self.seed,
            uploading=Uploading(
                self.up,
                share=self.top,
                memory=MemoryStore(spec.folder / "left", Left, every=self.every, last=self.last),
                most=spec.guards.max_norm,
            ),
            sums=SumHost(site) if site.member else None,
            expects=self.expects,
        )


class SequentialEngine:
    """Asks one site after another, in the order of their names, in this process."""

    def __init__(self, specs: Sequence[SiteSpec], hosting: Hosting) -> None:
        scratch: Scratch = {}
        self._hosts = {spec.name: hosting.host(spec, scratch) for spec in specs}

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return tuple(sorted(self._hosts))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply. Ignores `timeout`: nothing here can be interrupted."""
        for site in sorted(asks):
            start = time.perf_counter()
            reply = self._hosts[site].answer(step, round, asks[site])
            yield Delivery(site, reply, time.perf_counter() - start)

    def stop(self) -> None:
        """Do nothing: nothing runs here between asks."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
