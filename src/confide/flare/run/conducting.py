"""The server's side of a run over real sites: sites join, a method runs, sites leave.

It does not know which engine it has. From federation to result it follows the same path as a run on
one machine (`confide.runs.outcomes`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from confide import __version__
from confide.data.corpus.facts import fingerprint
from confide.errors import FederationError, QuorumError, SettingsError
from confide.federation.engine import Engine
from confide.federation.events import Event, Watcher
from confide.federation.federation import Federation
from confide.federation.files import for_the_owner, inside
from confide.federation.ledger import CLOSED, Ledger
from confide.flare.run.agreements import OUTSIDE
from confide.flare.run.consenting import ALONE
from confide.flare.run.joining import (
    CLOSE,
    JOIN,
    LEAVE,
    Close,
    Join,
    Joined,
    check_suited,
    leaving,
    wire_digest,
    wire_of,
)
from confide.flare.run.orders import packed, settings_for_sites
from confide.flare.run.signing import Carrier, Evidence
from confide.kinds.starting import Start
from confide.methods import method_of
from confide.runs.folder import RunFolder, environment
from confide.runs.gathering import public_set
from confide.runs.outcomes import (
    Outcome,
    Plan,
    binding_of,
    federation_of,
    ledger_path,
    open_ledger,
    outcome_of,
    result_of,
    sums_of,
)
from confide.runs.result import Result
from confide.runs.starting import start_of
from confide.settings import Settings, dump, parse
from confide.settings.tomlfile import parse_toml
from confide.text.document import Document
from confide.userfiles import Tree

WITHDRAWN = {"no-consent", "other-wire", OUTSIDE}
"""Codes of a site that does not agree, or no longer agrees."""


class Conductor:
    """Conducts one run, called `name` everywhere and kept in `folder` at the server.

    `version` is that of confide at the lead. `public` is the server's folder from which a public
    set may be read, if there is one. With `evidence` every ask and reply is signed; without it,
    `lead` is the name of whoever is said to have ordered the run.
    """

    def __init__(
        self,
        name: str,
        settings: str,
        *,
        version: str,
        engine: Carrier,
        folder: Path,
        public: Path | None = None,
        evidence: Evidence | None = None,
        lead: str = "",
    ) -> None:
        self._name = name
        self._settings = settings
        self._version = version
        self._engine = engine
        self._folder = RunFolder(folder)
        self._public_folder = public
        self._evidence = evidence
        self._lead = lead

    @for_the_owner()
    def conduct(self, watch: Watcher) -> Result:
        """Run it from its last checkpoint to the end; the content of result.json.

        Raises FederationError (a site fails, versions differ), SettingsError, RunError.
        """
        if self._version != __version__:
            raise FederationError(
                "the lead and the server run different versions of confide",
                expected=f"{__version__}, as at the server",
                got=self._version,
                fix="install the same version everywhere",
            )
        settings = parse(parse_toml(self._settings))
        check_suited(settings)
        if self._evidence:
            self._evidence.check()
        folder = self._folder
        folder.check(settings, resume=folder.is_taken())
        folder.close()
        folder.write("settings.toml", dump(settings))
        public, start = self._public(settings), self._start(settings)
        watch(Event("start", rounds=settings.rounds, message=f"{self._name}: {settings.method}"))
        ended = [
            self._part(settings, name, sites, public=public, start=start, watch=watch)
            for name, sites in parts_of(settings, self._engine.sites).items()
        ]
        joined = {site: one for _, part in ended for site, one in sorted(part.items())}
        digest = _together(joined, public)
        folder.write("environment.json", environment(settings, digest))
        told = sums_of(settings) == "plain"  # else sites say nothing of how much they have
        sites = {site: _facts(one) for site, one in joined.items()} if told else {}
        data = {"fingerprint": digest, "sites": sites}
        name = settings.name or self._name
        result = result_of(settings, [outcome for outcome, _ in ended], name=name, data=data)
        result.write(folder.path)
        watch(Event("end", message=self._name))
        return result

    def _part(
        self,
        settings: Settings,
        name: str,
        sites: tuple[str, ...],
        *,
        public: Sequence[Document],
        start: Start | None,
        watch: Watcher,
    ) -> tuple[Outcome, dict[str, Joined]]:
        """One federation of the run: join, train and score, leave."""
        ledger = open_ledger(self._folder, name)
        engine: Engine = self._engine
        if self._evidence:
            path = ledger_path(self._folder, name)
            engine = self._evidence.engine(self._engine, ledger, path)
        federation = federation_of(settings, engine, ledger, sites=sites, watch=watch)
        joined = federation.ask(JOIN, self._join(settings, sites), round=0)
        binding = binding_of(settings, _together(joined, public))
        method = method_of(settings)(settings, public)
        method.begin_with(start)
        plan = Plan(settings, method, engine, self._folder, binding, watch, called=self._name)
        outcome = outcome_of(plan, name, sorted(joined), ledger=ledger)
        federation.giving = outcome.giving
        watch(Event("scores", message="the sites keep their models and count their own errors"))
        self._leave(federation, outcome, sites=sorted(joined))
        if self._evidence:
            _close(federation, ledger, outcome, sites=sorted(joined))
        ledger.flush()
        return outcome, joined

    def _start(self, settings: Settings) -> Start | None:
        """The model to start from, in the server's own folder only."""
        name = settings.start_from
        return start_of(settings, place=self._inside(name)) if name else None

    def _inside(self, path: str) -> Path:
        """A file or folder below the server's own folder of public files."""
        if self._public_folder is None:
            raise SettingsError(
                "this server has no folder of public files", fix="make `public` in its kit"
            )
        return inside(self._public_folder, *Path(path).parts)

    def _public(self, settings: Settings) -> tuple[Document, ...]:
        """The public set, from files in the server's own folder only."""
        files = settings.public.files
        if not files:
            return ()
        found = tuple(str(self._inside(path)) for path in files)
        own = settings.public.model_copy(update={"files": found})
        return public_set(settings.model_copy(update={"public": own}))

    def _join(self, settings: Settings, sites: Sequence[str]) -> Join:
        return Join(
            version=__version__,
            run=self._name,
            settings=settings_for_sites(settings),
            sites=list(sites),
            wire=wire_digest(wire_of(settings.trained_by)),
            lead=self._evidence.order.lead().name if self._evidence else self._lead,
            order=packed(self._evidence.order) if self._evidence else "",
        )

    def _leave(self, federation: Federation, outcome: Outcome, *, sites: list[str]) -> None:
        """Send every site the state; one that no longer answers still has its memory.

        The run succeeds even if no site takes the state because none agrees any more.
        """
        progress = outcome.trained.progress
        ask = leaving(outcome.trained.state, progress.best_round, progress.calibrator)
        last = progress.history[-1]["round"]
        try:
            federation.ask(LEAVE, ask, round=last, sites=sites, at_least=1)
        except QuorumError as error:
            codes = {fault.code for fault in error.faults}
            if not codes or codes - WITHDRAWN:
                raise
        for fault in federation.take_faults():
            progress.left_out[fault.site] = fault.code


def parts_of(settings: Settings, sites: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The federations of a run and their sites: under `alone`, one for each site."""
    return {site: (site,) for site in sites} if settings.method == ALONE else {"": sites}


def _close(
    federation: Federation, ledger: Ledger, outcome: Outcome, *, sites: Sequence[str]
) -> None:
    """Have server and sites sign the heads of their ledgers, so that neither can cut off the end.

    The run is complete without it: a site that no longer answers is noted as left out.
    """
    progress, last = outcome.trained.progress, outcome.trained.progress.history[-1]["round"]
    with contextlib.suppress(QuorumError):
        federation.ask(CLOSE, Close(ledger.lines), round=last, sites=sites, at_least=1)
    for fault in federation.take_faults():
        progress.left_out.setdefault(fault.site, fault.code)
    ledger.note(CLOSED)


def _together(joined: Mapping[str, Joined], public: Sequence[Document]) -> str:
    """One digest of all sites' text, and of the public set, if there is one."""
    lines = "".join(f"{site}\0{one.fingerprint}\n" for site, one in sorted(joined.items()))
    if public:
        lines += fingerprint([("", "public", public)], relations=True)
    return hashlib.sha256(lines.encode()).hexdigest()


def _facts(joined: Joined) -> Tree:
    return {
        **joined.sentences,
        "entities": dict(sorted(joined.entities.items())),
        "problems": dict(sorted(joined.problems.items())),
    }
