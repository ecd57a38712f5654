"""What a site keeps of its own errors, and what it counts, of relations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from cases import each
from confide.errors import RunError, SettingsError
from confide.federation.keys import new_key
from confide.federation.site import Site
from confide.jobs.comparison import compare
from confide.kinds.entities import EntityExtractor, entity_report
from confide.kinds.protocol import WORST, Report
from confide.kinds.relations.batches import Rules
from confide.kinds.relations.site import RelationExtractor, relation_report
from confide.report.folder import errors_of
from confide.runs.folder import read_sentences
from confide.runs.run import Home, keep, site_reports
from confide.scoring import Count, EntityCounts, RelationCounts, relation_scores
from confide.text.document import NO_RELATION, Document, Entity, Relation, pair_attributes

TEXT = "Aspirin eased pain. Lasix caused a rash."
RULES = Rules(types=frozenset({("Drug", "Sign")}))


def note(id: str, *relations: tuple[str, str, str], sure: float | None = None) -> Document:
    """Two drugs and two signs in two sentences; relations as (type, head, tail)."""
    words = {"T1": ("Drug", "Aspirin"), "T2": ("Sign", "pain"),
             "T3": ("Drug", "Lasix"), "T4": ("Sign", "rash")}  # fmt: skip
    entities = tuple(
        Entity(name, type, ((TEXT.index(word), TEXT.index(word) + len(word)),))
        for name, (type, word) in words.items()
    )
    links = tuple(
        Relation(f"R{n}", kind, head, tail, confidence=sure)
        for n, (kind, head, tail) in enumerate(relations, 1)
    )
    return Document(id, TEXT, entities, links)


GOLD = [
    note("n1", ("treats", "T1", "T2"), ("causes", "T3", "T4")),
    note("n2", ("causes", "T3", "T4"), ("causes", "T1", "T4")),  # the second is too far
    note("n3"),
]
SEEN = [
    note("n1", ("treats", "T1", "T2"), ("treats", "T3", "T4"), sure=0.6),
    note("n2"),
    note("n3", ("causes", "T1", "T2"), sure=0.9),
]


def related(predicted: Sequence[Document], spec: Site, rules: Rules) -> Any:
    """Keep the report of a relation model, and give its counts."""
    report = relation_report(spec.test, predicted, rules)
    keep(spec, report, task="re")
    return report.counts


def kept(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    files = ("errors.json", "sentences.json")
    errors, counted = (json.loads((folder / name).read_text()) for name in files)
    return errors, counted


def test_relations_are_counted_by_document(tmp_path: Path) -> None:
    counts = related(SEEN, Site("north", [], tmp_path, test=GOLD), RULES)
    assert counts == RelationCounts(
        {
            ("causes", NO_RELATION): 1, ("causes", "treats"): 1, (NO_RELATION, "causes"): 1,
            (NO_RELATION, NO_RELATION): 2, ("treats", "treats"): 1,
        },
        {"causes": 1},
    )  # fmt: skip
    errors, counted = kept(tmp_path)
    assert counted["micro"] == [[1, 2, 2], [0, 0, 2], [0, 1, 0]]  # the missed one is in the second
    assert (counted["schema"], counted["site"]) == (1, "north")
    rows = read_sentences(tmp_path / "sentences.json", "micro").counts_N3.sum(axis=0)
    assert Count(*rows.tolist()) == Count(1, 3, 4)
    assert relation_scores(counts)["micro"]["f1"] == 2 / 7
    assert errors["confusion"] == {
        "causes": {NO_RELATION: 1, "treats": 1, "": 1},
        NO_RELATION: {"causes": 1, NO_RELATION: 2}, "treats": {"treats": 1},
    }  # fmt: skip


def test_the_surest_wrong_relation_comes_first_and_what_was_not_found_last(tmp_path: Path) -> None:
    related(SEEN, Site("north", [], tmp_path, test=GOLD), RULES)
    errors, _ = kept(tmp_path)
    told = [(case["where"], case["gold"], case["predicted"], case["confidence"])
            for case in errors["worst"]]  # fmt: skip
    assert told == [
        ("n3:T1:T2", NO_RELATION, "causes", 0.9),
        ("n1:T3:T4", "causes", "treats", 0.6),
        ("n2:T3:T4", "causes", NO_RELATION, None),
    ]
    wrong = errors_of(errors).worst[1]
    assert "".join(piece.text for piece in wrong.pieces) == "Lasix caused a rash."
    assert [(piece.text, piece.type) for piece in wrong.pieces if piece.type] == [
        ("Lasix", "head Drug"), ("rash", "tail Sign"),
    ]  # fmt: skip


def test_right_relations_are_kept_too(tmp_path: Path) -> None:
    related(SEEN, Site("north", [], tmp_path, test=GOLD), RULES)
    errors, _ = kept(tmp_path)
    (right,) = errors["right"]
    assert (right["gold"], right["predicted"]) == ("treats", "treats")


@each(("found", "unseen"), [(50, 50), (50, 3), (3, 50), (2, 2), (0, 50)])
def test_both_kinds_of_mistake_have_room(tmp_path: Path, found: int, unseen: int) -> None:
    gold = [note("n")] * found + [note("n", ("treats", "T1", "T2"))] * unseen
    seen = [note("n", ("treats", "T1", "T2"), sure=0.5)] * found + [note("n")] * unseen
    related(seen, Site("north", [], tmp_path, test=gold), RULES)
    predicted = [case["predicted"] for case in kept(tmp_path)[0]["worst"]]
    assert len(predicted) == min(WORST, found + unseen)
    for label, count, other in (("treats", found, unseen), (NO_RELATION, unseen, found)):
        assert predicted.count(label) == min(count, max(WORST // 2, WORST - other))


def test_the_fingerprint_is_of_relations_and_stated_pairs_too(tmp_path: Path) -> None:
    def printed(document: Document) -> str:
        related([document], Site("north", [], tmp_path, test=[document]), RULES)
        return str(kept(tmp_path)[1]["fingerprint"])

    first, *_ = GOLD
    others = [
        replace(first, relations=first.relations[:1]),
        replace(first, relations=(replace(first.relations[0], type="causes"), first.relations[1])),
        replace(first, attributes=pair_attributes([("T1", "T2")])),
    ]
    assert printed(first) == printed(first)
    assert len({printed(document) for document in (first, *others)}) == 4


# --- two runs -----------------------------------------------------------------------------


def test_sites_compare_their_relations(tmp_path: Path) -> None:
    gold = GOLD * 20
    for name, seen in (("a", SEEN), ("b", GOLD)):
        related(seen * 20, Site("north", [], tmp_path / name, test=gold), RULES)
    found = compare(tmp_path / "a", tmp_path / "b", samples=200)
    assert (found.matching, found.unit, found.overall.sentences) == ("micro", "documents", 60)
    assert (found.overall.first.f1, found.overall.verdict) == (2 / 7, "better")
    assert found == compare(tmp_path / "a", tmp_path / "b", matching="micro", samples=200)
    with pytest.raises(SettingsError, match="match relations; expected micro; got 'strict'"):
        compare(tmp_path / "a", tmp_path / "b", matching="strict")


def test_other_rules_are_compared_by_the_same_gold(tmp_path: Path) -> None:
    """What one does not look at counts as gold for both."""
    for name, rules in (("a", RULES), ("b", Rules(max_sentences=None))):
        related(SEEN, Site("north", [], tmp_path / name, test=GOLD), rules)
    found = compare(tmp_path / "a", tmp_path / "b", samples=100)
    assert found.overall.difference == 0


def test_entities_and_relations_are_not_compared(tmp_path: Path) -> None:
    related(SEEN, Site("north", [], tmp_path / "re", test=GOLD), RULES)
    keep(Site("north", [], tmp_path / "ner", test=GOLD), entity_report(GOLD, SEEN), task="ner")
    with pytest.raises(RunError, match=r"ner \(ner\) and .*re \(re\): these runs have different"):
        compare(tmp_path / "ner", tmp_path / "re")


# --- methods ------------------------------------------------------------------------------


@dataclass
class Reader:
    """An extractor that knows the answers."""

    task: str

    def report(self, documents: Sequence[Document], looked_for: Any) -> Report:
        if self.task == "re":
            return relation_report(documents, documents, RULES)
        return entity_report(documents, documents)


@dataclass
class Toy:
    """As much of a method as reports need."""

    task: str = "re"
    keyed: bool = False
    personal: bool = False
    apart: bool = False
    made: int = 0
    Memory: Any = object
    kind: ClassVar[Any] = SimpleNamespace(trains=True)

    def extractor(self, state: Any, memory: Any, *, key: bytes | None, encoder: str | None) -> Any:
        assert (key is not None) == self.keyed
        self.made += 1
        return Reader(self.task)


def homes(folder: Path, *, key: Path | None = None) -> list[Home]:
    state = object()
    return [
        Home(Site(name, [], folder / name, test=test, key_file=key), state)
        for name, test in (("a", GOLD), ("b", []), ("c", GOLD[:1]))
    ]


def test_a_method_without_keys_needs_none(tmp_path: Path) -> None:
    method: Any = Toy()
    counts = site_reports(method, homes(tmp_path))
    assert method.made == 1  # the two share it
    assert {site: getattr(count, "examples", None) for site, count in counts.items()} == {
        "a": 6, "b": 0, "c": 2,
    }  # fmt: skip
    assert counts["b"] == RelationCounts() and not (tmp_path / "b").exists()
    assert (tmp_path / "a" / "errors.json").exists()


def test_a_site_without_a_key_took_no_part_in_a_keyed_method(tmp_path: Path) -> None:
    method: Any = Toy(task="ner", keyed=True)
    nothing = EntityCounts({}, {})
    assert list(site_reports(method, homes(tmp_path)).values()) == [nothing] * 3
    assert method.made == 0
    counts = site_reports(method, homes(tmp_path, key=new_key(tmp_path / "k")))
    assert isinstance(counts["a"], EntityCounts) and counts["a"].strict["Drug"].gold == 6
    assert json.loads((tmp_path / "a" / "errors.json").read_text())["task"] == "ner"


def test_of_types_that_nobody_looked_for_at_a_site_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EntityExtractor, "_found", lambda *_, keep: SEEN)
    trainer: Any = None
    model: Any = None
    extractor = EntityExtractor(trainer, model)
    method: Any = Toy(task="ner", apart=True)
    method.extractor = lambda *_, **__: extractor
    drugs = [
        replace(one, entities=tuple(e for e in one.entities if e.type == "Drug")) for one in GOLD
    ]
    sites = {
        "a": Site("a", drugs, tmp_path / "a", test=drugs),
        "b": Site("b", drugs, tmp_path / "b", test=drugs, annotates=("Drug",)),
        "c": Site("c", drugs, tmp_path / "c", test=drugs, test_annotates=("Sign",)),
        "d": Site("d", drugs, tmp_path / "d", test=GOLD),
    }
    site_reports(method, [Home(spec, object()) for spec in sites.values()])
    sums = {
        name: read_sentences(tmp_path / name / "sentences.json", "strict").counts_N3.sum(axis=0)
        for name in sites
    }
    assert sums["a"].tolist() == sums["b"].tolist() == [6, 6, 6]
    assert sums["c"].tolist() == [6, 12, 6]  # signs were looked for, and there were none
    assert sums["d"].tolist() == [12, 12, 12]


def test_of_relations_that_nobody_looked_for_at_a_site_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RelationExtractor, "_related", lambda _, documents: SEEN)
    nothing: Any = None
    reader = RelationExtractor(nothing, nothing, RULES, ())
    method: Any = Toy(task="re", apart=True)
    method.extractor = lambda *_, **__: reader
    causes = [
        replace(one, relations=tuple(r for r in one.relations if r.type == "causes"))
        for one in GOLD
    ]
    sites = {
        "a": Site("a", causes, tmp_path / "a", test=causes),
        "b": Site("b", causes, tmp_path / "b", test=causes, annotates=("causes",)),
        "c": Site("c", causes, tmp_path / "c", test=causes, test_annotates=("treats",)),
        "d": Site("d", causes, tmp_path / "d", test=GOLD),
    }
    counts = site_reports(method, [Home(spec, object()) for spec in sites.values()])
    predicted = {name: set(getattr(one, "relations", ())) for name, one in counts.items()}
    assert predicted["a"] == predicted["b"] == {"causes"}
    assert predicted["c"] == predicted["d"] == {"causes", "treats"}
