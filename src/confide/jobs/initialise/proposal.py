"""Which method `init` proposes, and why: the questions of docs/methods/choosing.md, in their order.

Three of them only the user can answer (`Wishes`); the files answer the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import SettingsError
from confide.jobs.initialise.files import SiteFiles
from confide.settings.defaults import OF_METHODS

FEW = 300
"""Sentences of training text below which a site is told to ask whether more text would help."""


REFERENCES = '"pooled" (all text in one place), "alone" (by itself)'


@dataclass(frozen=True)
class Wishes:
    """What only the user knows.

    `public`: text that all may read, on which sites predict so that no weights leave. `own_types`:
    each site keeps a model of its own types. `megabytes`: what a site may upload in the whole run.
    """

    public: tuple[Path, ...] = ()
    own_types: bool = False
    megabytes: float | None = None


@dataclass(frozen=True)
class Proposal:
    """The method with its task as lines of a settings file, its options, and reasons in words.

    `finds` is what a rule scales training to ("entities", "relations"); "" leaves training to the
    defaults of the method, in so many `rounds`.
    """

    lines: tuple[str, ...]
    why: tuple[str, ...]
    outside: str = ""
    rounds: str = "20"
    finds: str = ""
    options: Mapping[str, object] = field(default_factory=dict)


def propose(sites: Sequence[SiteFiles], wishes: Wishes, *, apart: bool) -> Proposal:
    """The method for these files and wishes; `apart`: sites annotate different types or relations.

    Raises SettingsError if a wish makes no sense, or does not go with the files.
    """
    if wishes.megabytes is not None and not 0 < wishes.megabytes < math.inf:
        raise SettingsError(
            "a site cannot upload so little, or so much",
            expected="--megabytes above 0", got=f"{wishes.megabytes:g}",
        )  # fmt: skip
    relations = all(site.about_relations for site in sites)
    what, finds = ("relations", "relations") if relations else ("types", "entities")
    linked = any(one.report.counts["relations"] for site in sites for one in site.read)
    task = ['task = "re"'] if relations else []
    if linked and not relations:
        task = ['task = "ner"         # entities; "re": the relations between them']
    if of_bags(sites):
        _must_not(wishes, "files of bags", public=True, own_types=True)
        return Proposal(
            ('task = "bags"',
             'method = "lazy-mil"  # or "fedavg", "chain"; references: "pooled", "alone"'),
            ("lazy-mil, because the labels of these files come from a knowledge base; if bags are"
             " small, compare it with fedavg",),
        )  # fmt: skip
    if (wished := _wished(wishes, task, what, apart=apart)) is not None:
        return wished
    if apart:
        return Proposal(
            (*task,
             f'method = "pseudo-complete"  # one model of all {what}; "fedner": each its own'),
            (f"pseudo-complete with training.outside = 1, because sites annotate different {what}"
             " and one model should find them all; --own-types: each site its own",),
            outside=what,
            finds=finds,
            options={"distil": False, "instance_weights": False},
        )  # fmt: skip
    others = 'or "fedatt"; "feded" with [public] files; ' if relations else ""
    return Proposal(
        (*task, f'method = "fedavg"    # {others}references: {REFERENCES}'),
        (f"fedavg, because all sites annotate the same {what} and weights may leave; --public FILE:"
         " sites predict public text instead",),
        finds=finds,
    )  # fmt: skip


def _wished(wishes: Wishes, task: Sequence[str], what: str, *, apart: bool) -> Proposal | None:
    """The method that a wish alone decides."""
    if wishes.public:
        _must_not(wishes, "a public set", own_types=True)
        return Proposal(
            (*task, f'method = "feded"     # references: {REFERENCES}, "public-only"'),
            ("feded, because there is a public set: sites send predictions on it, and no weights",
             *_if(apart, f"sites annotate different {what}, which feded takes for mistakes: without"
                  " --public, weights leave, but one model finds them all")),
        )  # fmt: skip
    if wishes.own_types:
        return Proposal(
            (*task, 'method = "fedner"    # each its own; "pseudo-complete": one model of all'),
            ("fedner, because each site shall keep its own types: the parts that tag never leave",),
            rounds=f"{OF_METHODS['fedner']['rounds']}        # of one mini-batch each",
        )  # fmt: skip
    return None


def advice(sites: Sequence[SiteFiles], wishes: Wishes) -> list[str]:
    """What else the page of choosing asks, for files like these."""
    small = [site.name for site in sites if 0 < site.sentences < FEW]
    return [
        *_if(bool(wishes.megabytes), "stops before a site uploads more; after a first run,"
             " `confide budget RUN --megabytes N` says how often to talk for that"),
        *_if(bool(small) and len(sites) > 1, f"{', '.join(small)}: fewer than {FEW} training"
             " sentences; `confide capacity` tells whether more text, or taking part, would help"),
        *_if(len(sites) > 1, "after the run, `confide home RUN` keeps for each site whichever model"
             " is best on its own development text"),
    ]  # fmt: skip


def of_bags(sites: Sequence[SiteFiles]) -> bool:
    """Whether the files are of corpora whose relations hold of bags."""
    return all(site.about_bags for site in sites)


def _must_not(wishes: Wishes, what: str, *, public: bool = False, own_types: bool = False) -> None:
    for given, name in ((public and wishes.public, "--public"),
                        (own_types and wishes.own_types, "--own-types")):  # fmt: skip
        if given:
            raise SettingsError(
                f"{name} does not go with {what}",
                fix=f"leave out {name}, or see docs/methods/choosing.md",
            )


def _if(holds: bool, line: str) -> tuple[str, ...]:
    return (line,) if holds else ()
