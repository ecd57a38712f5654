"""What a site learns about its own errors: a confusion table and the worst cases, with their text.

Also the counts of each of its sentences (with relations, each document; with bags, each bag).
Whoever holds the site's text writes both into the folder that the site owns; they are never sent.
The kind decides what they contain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from confide.errors import KeyFileError
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.federation.memory import MemoryStore
from confide.kinds.trained import Extractor, Report, Trained
from confide.methods import Method
from confide.runs.sentences import SENTENCES, SENTENCES_SCHEMA
from confide.tasks import TASKS, Counts

WEIGHTS = "weights.json"


@dataclass(frozen=True)
class Home:
    """A site at the end of a run: the state, and the memory that goes with it, if any."""

    spec: SiteSpec
    state: object
    memory: object = None


def site_reports(method: Method, homes: Iterable[Home]) -> dict[str, Counts]:
    """Write every site's report and give its counts.

    Neighbours with one model and one key share the extractor; only one is held at a time.
    """
    counts: dict[str, Counts] = {}
    extract: Trained | None = None
    made: tuple[object, object, bytes | None] = (None, None, None)
    for home in homes:
        spec, key = home.spec, _key_of(home.spec) if method.keyed else None
        no_model = (method.keyed and key is None) or (method.personal and home.memory is None)
        if no_model or not spec.test:
            counts[spec.name] = TASKS[method.task].nothing
            continue
        if extract is None or not (
            made[0] is home.state and made[1] is home.memory and made[2] == key
        ):
            extract = method.extractor(home.state, home.memory, key=key, encoder=spec.context)
            made = (home.state, home.memory, key)
        some = spec.knows or method.apart
        looked_for = annotated_at(spec, TASKS[method.task].learns) if some else None
        own = cast(Extractor, extract).only(spec.types) if spec.types else extract
        report = own.report(spec.test, looked_for)
        counts[spec.name] = report.counts
        keep(spec, report, task=method.task)
        _keep_weights(method, extract, spec)
    return counts


def annotated_at(spec: SiteSpec, learns: str) -> set[str]:
    """The types of what is learnt that a site annotates in training or test text."""
    seen = {found.type for one in spec.train for found in getattr(one, learns, ())}
    return {*(spec.knows or seen), *spec.test_knows}


def keep(spec: SiteSpec, report: Report, *, task: str) -> None:
    """Write a site's errors on its test text, and the counts of its sentences, into its own folder.

    (true, predicted, gold) of each sentence are only numbers, but still the site's own: they tell
    whether each sentence was understood.
    """
    if not report.errors:
        return
    errors = {"site": spec.name, "task": task, **report.errors}
    write_of_run(spec.folder / "errors.json", json.dumps(errors, indent=1).encode())
    body = {"schema": SENTENCES_SCHEMA, "site": spec.name, **report.sentences}
    write_of_run(spec.folder / SENTENCES, json.dumps(body, separators=(",", ":")).encode())


def _keep_weights(method: Method, extract: Any, spec: SiteSpec) -> None:
    """Keep at the site how much each training sentence counts, if the method weighs them."""
    found = method.sentence_weights(
        lambda: MemoryStore(spec.folder / "memory", method.Memory).latest()
    )
    if found is None:
        return
    round, weights_S = found
    body = {"site": spec.name, "round": round, **extract.weighted(spec.train, weights_S)}
    write_of_run(spec.folder / WEIGHTS, json.dumps(body, indent=1).encode())


def _key_of(spec: SiteSpec) -> bytes | None:
    """The key of a site with test text; None if it has no key and so took no part."""
    try:
        return read_key(spec.key_file) if spec.test and spec.key_file else None
    except KeyFileError:
        return None  # the history says so
