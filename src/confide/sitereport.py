"""What a site can see of its own errors: confusion and the worst sentences, with their text.

And what each of its sentences counted, in numbers. Both are written into the folder that the site
owns, by whoever holds the site's text; never sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from confide.errors import KeyFileError
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.methods import Method
from confide.scoring import (
    Confusion,
    EntityCounts,
    ErrorCase,
    confusion,
    count_entities,
    micro,
    worst_errors,
)
from confide.scoring.counts import match_documents
from confide.scoring.units import by_sentence
from confide.text.document import Document

WORST = 20
SENTENCES = "sentences.json"
SENTENCES_SCHEMA = 1


@dataclass(frozen=True)
class Home:
    """A site at the end of a run: the state, and the memory that goes with it, if there is one."""

    spec: SiteSpec
    state: Any
    memory: Any = None


def site_reports(method: Method, homes: Iterable[Home]) -> dict[str, EntityCounts]:
    """Every site's report.

    Neighbours with one model and one key share the extractor; no more than one is held at a time.
    """
    counts: dict[str, EntityCounts] = {}
    made: tuple[Any, Any, bytes, Any] = (None, None, b"", None)
    for home in homes:
        spec, key = home.spec, _key_of(home.spec)
        if key is None or (method.personal and home.memory is None):
            counts[spec.name] = EntityCounts({}, {})
            continue
        same = made[0] is home.state and made[1] is home.memory and made[2] == key
        if not same:
            extract = method.extractor(home.state, home.memory, key=key, encoder=spec.context)
            made = (home.state, home.memory, key, extract)
        counts[spec.name] = site_report(made[3](spec.test), spec)
    return counts


def site_report(predicted: Sequence[Document], spec: SiteSpec) -> EntityCounts:
    """Keep a site's errors on its test text, and its sentences' counts, there; give the counts."""
    report = {
        "site": spec.name,
        "confusion": _rows(confusion(spec.test, predicted)),
        "worst": [_case(case) for case in worst_errors(spec.test, predicted, WORST)],
    }
    write_of_run(spec.folder / "errors.json", json.dumps(report, indent=1).encode())
    counted = json.dumps(_sentences(predicted, spec), separators=(",", ":"))
    write_of_run(spec.folder / SENTENCES, counted.encode())
    return count_entities(spec.test, predicted)


def _key_of(spec: SiteSpec) -> bytes | None:
    """The key of a site that has test text; a site without a key took no part."""
    try:
        return read_key(spec.key_file) if spec.test and spec.key_file else None
    except KeyFileError:
        return None  # the history says so


def _sentences(predicted: Sequence[Document], spec: SiteSpec) -> dict[str, Any]:
    """(true, predicted, gold) of every sentence, as `scoring.sentence_counts` has them, both ways.

    Numbers only; still the site's own, since they say of each sentence whether it was understood.
    """
    matches = list(match_documents(*by_sentence(spec.test, predicted)))
    return {
        "schema": SENTENCES_SCHEMA,
        "site": spec.name,
        "fingerprint": _fingerprint(spec.test),
        "strict": [micro({one.type: one.strict for one in sentence}) for sentence in matches],
        "relaxed": [micro({one.type: one.relaxed for one in sentence}) for sentence in matches],
    }


def _fingerprint(documents: Sequence[Document]) -> str:
    """A digest of text and annotation, by which `compare` knows the same test text."""
    digest = hashlib.sha256()
    for document in documents:
        text = document.text.encode("utf-8", "surrogatepass")
        marks = [(entity.type, entity.fragments) for entity in document.entities]
        digest.update(f"{len(text)}\0{marks!r}\0".encode() + text)
    return digest.hexdigest()


def _rows(found: Confusion) -> dict[str, dict[str, int]]:
    """Gold type -> predicted type -> how often; "" stands for no entity on that side."""
    rows: dict[str, dict[str, int]] = {}
    for (gold, predicted), count in found.pairs.items():
        rows.setdefault(gold, {})[predicted] = count
    for gold, count in found.missed.items():
        rows.setdefault(gold, {})[""] = count
    if found.spurious:
        rows[""] = dict(found.spurious)
    return rows


def _case(case: ErrorCase) -> dict[str, Any]:
    return {
        "where": case.document,
        "text": case.text,
        "gold": [[mark.fragments[0][0], mark.fragments[-1][1], mark.type] for mark in case.gold],
        "predicted": [
            [mark.fragments[0][0], mark.fragments[-1][1], mark.type, mark.confidence]
            for mark in case.predicted
        ],
    }
