"""The server's side of a run over real sites: sites join, a method runs, sites leave.

Knows an engine, not which; the same path from federation to result as on one machine
(`confide.outcomes`).
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confide import __version__
from confide.data.facts import fingerprint
from confide.errors import FederationError, QuorumError
from confide.federation.checkpoints import as_array
from confide.federation.events import Event, Watcher
from confide.federation.federation import Engine, Federation
from confide.federation.messages import encode
from confide.flare.agreements import OUTSIDE
from confide.flare.consenting import ALONE
from confide.flare.joining import (
    JOIN,
    LEAVE,
    Join,
    Joined,
    Leave,
    check_suited,
    wire_digest,
    wire_of,
)
from confide.gathering import public_set
from confide.methods import method_of
from confide.outcomes import (
    Outcome,
    Plan,
    binding_of,
    federation_of,
    open_ledger,
    outcome_of,
    result_of,
)
from confide.runfolder import RunFolder, environment
from confide.settings import Settings, dump, parse
from confide.text.document import Document

WITHDRAWN = {"no-consent", "other-wire", OUTSIDE}
"""Codes of a site that does not agree, or no longer."""


class Conductor:
    """Conducts one run: `name` at every place, `folder` at the server.

    `version` is that of confide at the lead, and `lead` its name, as the engine knows it.
    """

    def __init__(
        self,
        name: str,
        settings: str,
        *,
        version: str,
        engine: Engine,
        folder: Path,
        lead: str = "",
    ) -> None:
        self._name = name
        self._settings = settings
        self._version = version
        self._engine = engine
        self._folder = RunFolder(folder)
        self._lead = lead

    def conduct(self, watch: Watcher) -> dict[str, Any]:
        """The run, from its last checkpoint on; what result.json says.

        Raises FederationError (a site that fails, two versions), SettingsError, RunError.
        """
        if self._version != __version__:
            raise FederationError(
                "the lead and the server run different versions of confide",
                expected=f"{__version__}, as at the server",
                got=self._version,
                fix="install the same version at all places",
            )
        settings = parse(tomllib.loads(self._settings))
        check_suited(settings)
        folder = self._folder
        folder.check(settings, resume=folder.is_taken())
        folder.write("settings.toml", dump(settings))
        watch(Event("start", rounds=settings.rounds, message=f"{self._name}: {settings.method}"))
        ended = [
            self._part(settings, name, sites, watch)
            for name, sites in parts_of(settings, self._engine.sites).items()
        ]
        joined = {site: one for _, part in ended for site, one in sorted(part.items())}
        digest = _together(joined, public_set(settings))
        folder.write("environment.json", environment(settings, digest))
        sites = {site: _facts(one) for site, one in joined.items()}
        data = {"fingerprint": digest, "sites": sites}
        name = settings.name or self._name
        result = result_of(settings, [outcome for outcome, _ in ended], name=name, data=data)
        folder.write("result.json", result)
        watch(Event("end", message=self._name))
        return result

    def _part(
        self, settings: Settings, name: str, sites: tuple[str, ...], watch: Watcher
    ) -> tuple[Outcome, dict[str, Joined]]:
        """One federation of the run: join, train and score, leave."""
        ledger = open_ledger(self._folder, name)
        federation = federation_of(settings, self._engine, ledger, sites=sites, watch=watch)
        joined = federation.ask(JOIN, self._join(settings, sites), round=0)
        public = public_set(settings)
        binding = binding_of(settings, _together(joined, public))
        method = method_of(settings)(settings, public)
        plan = Plan(settings, method, self._engine, self._folder, binding, watch)
        outcome = outcome_of(plan, name, sorted(joined), ledger=ledger)
        watch(Event("scores", message="the sites keep their models and look at their own errors"))
        self._leave(federation, outcome, sites=sorted(joined))
        ledger.flush()
        return outcome, joined

    def _join(self, settings: Settings, sites: Sequence[str]) -> Join:
        return Join(
            version=__version__,
            run=self._name,
            settings=dump(_without_files(settings)),
            sites=list(sites),
            wire=wire_digest(wire_of(settings.trained_by)),
            lead=self._lead,
        )

    def _leave(self, federation: Federation, outcome: Outcome, *, sites: list[str]) -> None:
        """Every site gets the state; one that does not answer any more has its memory still.

        The run ends well as well where no site wants it: none agrees any more.
        """
        progress = outcome.trained.progress
        ask = Leave(as_array(encode(outcome.trained.state)), progress.best_round)
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
    """The federations of a run and their sites; those of `alone` have one each."""
    return {site: (site,) for site in sites} if settings.method == ALONE else {"": sites}


def _without_files(settings: Settings) -> Settings:
    """The settings as sites get them: where the public set lies is the server's business."""
    public = settings.public.model_copy(update={"files": ()})
    return settings.model_copy(update={"public": public})


def _together(joined: Mapping[str, Joined], public: Sequence[Document]) -> str:
    """One digest of all sites' text, and of the public set, where there is one."""
    lines = "".join(f"{site}\0{one.fingerprint}\n" for site, one in sorted(joined.items()))
    if public:
        lines += fingerprint([("", "public", public)], relations=True)
    return hashlib.sha256(lines.encode()).hexdigest()


def _facts(joined: Joined) -> dict[str, Any]:
    return {
        **joined.sentences,
        "entities": dict(sorted(joined.entities.items())),
        "problems": dict(sorted(joined.problems.items())),
    }
