"""What a site can see of its own errors: confusion and the worst cases, with their text.

And what each of its sentences counted (of relations: each of its documents; of bags: each bag), in
numbers. Both are written into the folder that the site owns, by whoever holds the site's text;
never sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal

from confide.data.batches.bags import Bags
from confide.data.batches.examples import examples_from
from confide.data.batches.relations import (
    NO_RELATION,
    RelationExample,
    Rules,
    candidates,
    predicted_labels,
)
from confide.errors import KeyFileError
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.federation.memory import MemoryStore
from confide.federation.messages import fields_of
from confide.kinds.bags.extractor import BagExtractor
from confide.kinds.entities import EntityExtractor, among
from confide.kinds.relations.completing import among as relations_among
from confide.kinds.relations.completing import relations_in
from confide.kinds.relations.extractor import RelationExtractor
from confide.methods import Method
from confide.scoring import (
    SCORING,
    BagCounts,
    Confusion,
    Count,
    Counts,
    EntityCounts,
    ErrorCase,
    RelationCounts,
    confusion,
    count_bags,
    count_entities,
    count_relations,
    micro,
    sum_relation_counts,
    worst_errors,
)
from confide.scoring.counts import match_documents
from confide.scoring.units import by_sentence
from confide.text.document import Document
from confide.text.pairs import stated_pairs

WORST = 20
SHOWN = 5
"""Sentences of a bag that stand in the list of errors."""
SENTENCES = "sentences.json"
WEIGHTS = "weights.json"
SENTENCES_SCHEMA = 1
Counted = Literal["strict", "relaxed", "micro", "best"]
COUNTED: Mapping[str, tuple[Counted, ...]] = MappingProxyType(
    {"ner": ("strict", "relaxed"), "re": ("micro",), "bags": ("best",), "text": ()}
)
"""By task, the kinds of scores of which sentences.json holds counts."""


@dataclass(frozen=True)
class Home:
    """A site at the end of a run: the state, and the memory that goes with it, if there is one."""

    spec: SiteSpec
    state: Any
    memory: Any = None


def site_reports(method: Method, homes: Iterable[Home]) -> dict[str, Counts]:
    """Every site's report.

    Neighbours with one model and one key share the extractor; no more than one is held at a time.
    """
    counts: dict[str, Counts] = {}
    made: tuple[Any, Any, bytes | None, Any] = (None, None, None, None)
    for home in homes:
        spec, key = home.spec, _key_of(home.spec) if method.keyed else None
        no_model = (method.keyed and key is None) or (method.personal and home.memory is None)
        if no_model or not spec.test:
            counts[spec.name] = SCORING[method.task].nothing
            continue
        if made[3] is None or not (
            made[0] is home.state and made[1] is home.memory and made[2] == key
        ):
            extract = method.extractor(home.state, home.memory, key=key, encoder=spec.context)
            made = (home.state, home.memory, key, extract)
        if method.task == "bags":
            counts[spec.name] = bag_report(made[3], spec)
            continue
        if method.task == "text":
            counts[spec.name] = made[3].counts(spec.test)
            continue
        predicted = made[3](spec.test)
        if method.task == "ner" and (spec.knows or method.apart):
            predicted = among(predicted, spec.test, annotated_at(spec))
        if method.task == "re":
            if method.apart:
                sought = {*(spec.knows or relations_in(spec.train)), *spec.test_knows}
                predicted = relations_among(predicted, spec.test, sought)
            counts[spec.name] = relation_report(predicted, spec, made[3].rules)
        else:
            counts[spec.name] = site_report(predicted, spec)
        if has_weights(method.Memory):
            keep_weights(made[3], spec, method.Memory)
    return counts


def annotated_at(spec: SiteSpec) -> set[str]:
    """The types that a site annotates, in training or in test text."""
    seen = {entity.type for one in spec.train for entity in one.entities}
    return {*(spec.knows or seen), *spec.test_knows}


def has_weights(memory: Any) -> bool:
    """Whether a method's sites remember how much each of their sentences counts."""
    return "instance_weights_S" in fields_of(memory)


def site_report(predicted: Sequence[Document], spec: SiteSpec) -> EntityCounts:
    """Keep a site's errors on its test text, and its sentences' counts, there; give the counts."""
    report = {
        "site": spec.name,
        "task": "ner",
        "confusion": _rows(confusion(spec.test, predicted)),
        "worst": [_case(case) for case in worst_errors(spec.test, predicted, WORST)],
    }
    matches = list(match_documents(*by_sentence(spec.test, predicted)))
    counted = {
        "strict": [micro({one.type: one.strict for one in sentence}) for sentence in matches],
        "relaxed": [micro({one.type: one.relaxed for one in sentence}) for sentence in matches],
    }
    _keep(spec, report, {"fingerprint": _fingerprint(spec.test), **counted})
    return count_entities(spec.test, predicted)


def keep_weights(extract: EntityExtractor | RelationExtractor, spec: SiteSpec, memory: Any) -> None:
    """Keep at the site how much each training sentence, or pair of entities, counts.

    Those that help the others come first. Nothing is written where no weights were ever made.
    """
    kept = MemoryStore(spec.folder / "memory", memory).latest()
    if kept is None or not len(kept.instance_weights_S):
        return
    weights = kept.instance_weights_S.tolist()
    if isinstance(extract, RelationExtractor):
        rows = {"pairs": _weighed_pairs(extract, spec.train, weights)}
    else:
        rows = {"sentences": _weighed_sentences(extract, spec.train, weights)}
    for found in rows.values():
        found.sort(key=lambda row: -row["weight"])
    body = {"site": spec.name, "round": kept.weighed, **rows}
    write_of_run(spec.folder / WEIGHTS, json.dumps(body, indent=1).encode())


def _weighed_sentences(
    extract: EntityExtractor, train: Sequence[Document], weights: Sequence[float]
) -> list[dict[str, Any]]:
    """Each training sentence; one of several windows counts what their mean does."""
    examples, _ = examples_from(train)
    windows = extract.modeller.prepared(examples).windows
    own: dict[int, list[float]] = {}
    for window, weight in zip(windows, weights, strict=True):
        own.setdefault(window.example, []).append(weight)
    return [
        {
            "where": train[examples[row].document].id,
            "text": " ".join(examples[row].tokens),
            "entities": [list(span) for span in examples[row].spans],
            "weight": fmean(values),
        }
        for row, values in own.items()
    ]


def _weighed_pairs(
    extract: RelationExtractor, train: Sequence[Document], weights: Sequence[float]
) -> list[dict[str, Any]]:
    """Each training pair."""
    return [
        {
            "where": train[one.document].id,
            "text": one.text,
            "head": [list(span) for span in one.head],
            "tail": [list(span) for span in one.tail],
            "relation": one.relation,
            "weight": weight,
        }
        for one, weight in zip(candidates(train, extract.rules).examples, weights, strict=True)
    ]


def relation_report(predicted: Sequence[Document], spec: SiteSpec, rules: Rules) -> RelationCounts:
    """As `site_report`, for documents with predicted relations.

    `rules` say which pairs the extractor looks at. What is counted by itself is a document: pairs
    of one text are not independent of each other.
    """
    counts: list[RelationCounts] = []
    wrong: list[dict[str, Any]] = []
    for document, found in zip(spec.test, predicted, strict=True):
        pairs = candidates([document], rules)
        labels = predicted_labels(pairs, [found])
        gold = [example.relation for example in pairs.examples]
        counts.append(count_relations(gold, labels, missed=pairs.missed))
        sure = {(one.head, one.tail): one.confidence for one in found.relations}
        wrong += [
            _wrong_pair(example, label, sure.get(example.pair))
            for example, label in zip(pairs.examples, labels, strict=True)
            if label != example.relation
        ]
    whole = sum_relation_counts(counts)
    rows = whole.to_json()["confusion"]
    for relation, count in whole.missed.items():
        rows.setdefault(relation, {})[""] = count
    report = {"site": spec.name, "task": "re", "confusion": rows, "worst": _worst(wrong)}
    counted = {"micro": [micro(one.relations) for one in counts]}
    fingerprint = _fingerprint(spec.test, relations=True)
    _keep(spec, report, {"fingerprint": fingerprint, **counted})
    return whole


def bag_report(extract: BagExtractor, spec: SiteSpec) -> BagCounts:
    """As `site_report`, for bags: those whose likeliest relation is wrong, with their sentences."""
    bags, scores_GR = extract.scores(spec.test)
    counted: list[Count] = []
    wrong: list[tuple[int, str, float]] = []
    for bag, (known, scores_R) in enumerate(zip(bags.facts, scores_GR, strict=True)):
        best = int(scores_R.argmax())
        label = extract.relations[best]
        counted.append(Count(label in known, label != NO_RELATION, len(known)))
        if label not in known and (known or label != NO_RELATION):
            wrong.append((bag, label, float(scores_R[best])))
    worst = [_wrong_bag(extract, spec, bags, case) for case in _worst_bags(wrong)]
    report = {"site": spec.name, "task": "bags", "confusion": {}, "worst": worst}
    fingerprint = _fingerprint(spec.test, relations=True)
    _keep(spec, report, {"fingerprint": fingerprint, "best": [tuple(map(int, c)) for c in counted]})
    return count_bags(scores_GR, extract.relations, bags.facts)


def _worst_bags(wrong: Sequence[tuple[int, str, float]]) -> list[tuple[int, str, float]]:
    """Wrong relations that the model is surest of, and bags where it sees none: as many of both."""
    said = sorted((case for case in wrong if case[1] != NO_RELATION), key=lambda case: -case[2])
    silent = sorted((case for case in wrong if case[1] == NO_RELATION), key=lambda case: -case[2])
    few = min(len(silent), max(WORST // 2, WORST - len(said)))
    return [*said[: WORST - few], *silent[:few]]


def _wrong_bag(
    extract: BagExtractor, spec: SiteSpec, bags: Bags, case: tuple[int, str, float]
) -> dict[str, Any]:
    """A bag, and the sentences that spoke most for what the model said, or should have said."""
    bag, label, confidence = case
    examples = [bags.examples[row] for row in bags.groups[bag]]
    relation = label if label != NO_RELATION else min(bags.facts[bag])
    places = sorted({example.document for example in examples})
    score = {
        (places[one.document], one.pair): one.score
        for fact in extract.facts([spec.test[place] for place in places], least=0.0)
        if fact.relation == relation and (fact.head, fact.tail) == bags.pairs[bag]
        for one in fact.sentences
    }
    scored = [(one, score.get((one.document, one.pair))) for one in examples]
    scored.sort(key=lambda pair: -(pair[1] or 0.0))
    first = scored[0][0]
    document = spec.test[first.document]
    names = {one.id: document.surface(one) for one in document.entities}
    return {
        "head": bags.pairs[bag][0],
        "tail": bags.pairs[bag][1],
        "names": [names[end] for end in first.pair],
        "gold": sorted(bags.facts[bag]),
        "predicted": label,
        "confidence": confidence,
        "relation": relation,
        "sentences": [{**_place(one), "score": likely} for one, likely in scored[:SHOWN]],
        "more": max(0, len(scored) - SHOWN),
    }


def _keep(spec: SiteSpec, report: dict[str, Any], counted: dict[str, Any]) -> None:
    """Write both into the site's folder.

    (true, predicted, gold) of every sentence are numbers only; still the site's own, since they say
    of each sentence whether it was understood.
    """
    write_of_run(spec.folder / "errors.json", json.dumps(report, indent=1).encode())
    body = {"schema": SENTENCES_SCHEMA, "site": spec.name, **counted}
    write_of_run(spec.folder / SENTENCES, json.dumps(body, separators=(",", ":")).encode())


def _key_of(spec: SiteSpec) -> bytes | None:
    """The key of a site that has test text; a site without a key took no part."""
    try:
        return read_key(spec.key_file) if spec.test and spec.key_file else None
    except KeyFileError:
        return None  # the history says so


def _fingerprint(documents: Sequence[Document], *, relations: bool = False) -> str:
    """A digest of text and annotation, by which `compare` knows the same test text."""
    digest = hashlib.sha256()
    for document in documents:
        text = document.text.encode("utf-8", "surrogatepass")
        marks = [(entity.type, entity.fragments) for entity in document.entities]
        digest.update(f"{len(text)}\0{marks!r}\0".encode() + text)
        if relations:
            names = [(entity.id, entity.concepts) for entity in document.entities]
            links = [(one.type, one.head, one.tail, one.level) for one in document.relations]
            digest.update(f"{names!r}\0{links!r}\0{stated_pairs(document)!r}\0".encode())
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


def _place(example: RelationExample) -> dict[str, Any]:
    return {
        "where": example.id,
        "text": example.text,
        "head": [*example.head],
        "tail": [*example.tail],
        "head_type": example.head_type,
        "tail_type": example.tail_type,
    }


def _wrong_pair(example: RelationExample, label: str, confidence: float | None) -> dict[str, Any]:
    return {
        **_place(example),
        "gold": example.relation,
        "predicted": label,
        "confidence": confidence,
    }


def _worst(wrong: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The wrong relations of which the model is surest, and relations that it did not find.

    As many of both, as far as there are.
    """
    found = [case for case in wrong if case["predicted"] != NO_RELATION]
    found.sort(key=lambda case: -(case["confidence"] or 0.0))
    unseen = [case for case in wrong if case["predicted"] == NO_RELATION]
    few = min(len(unseen), max(WORST // 2, WORST - len(found)))
    return [*islice(found, WORST - few), *islice(unseen, few)]
