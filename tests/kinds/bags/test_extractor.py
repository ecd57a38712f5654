"""A trained bag model for who has it: facts with their sentences, and documents with relations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confide.errors import KeyFileError
from confide.kinds.bags.model import sentence_probabilities
from confide.kinds.bags.site import BagExtractor, bag_report
from confide.kinds.relations.batches import NO_RELATION
from confide.text.document import Document, Relation
from contract.bags import bag_documents, holds
from contract.corpus import KEY, tiny
from contract.entries import ENTRIES
from contract.relations import DRUGS, EFFECTS
from methods.relation_runs import started


@pytest.fixture(scope="module", params=["lazy-mil-bags", "fedavg-bags"])
def learned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    """A method and a state that has learnt the corpus."""
    folder = tmp_path_factory.mktemp("learned")
    name = request.param
    settings = tiny(folder, f"method={name}", *ENTRIES[name].learning, sites=2)
    method, federation, _ = started(folder, settings)
    state = method.start(federation)
    for number in range(1, settings.rounds + 1):
        state, _ = method.round(state, federation, number)
    return method, state


@pytest.fixture(scope="module")
def extract(learned: tuple[Any, Any]) -> BagExtractor:
    method, state = learned
    found: BagExtractor = method.pair.extractor(state, None, key=KEY)
    return found


GOLD = bag_documents("site-1", "test", 30)
BARE = [replace(one, relations=()) for one in GOLD]


def pair_of(one: Document) -> tuple[str, str]:
    return one.entities[0].concepts[0], one.entities[1].concepts[0]


def test_facts_are_those_of_the_knowledge_base_best_first(extract: BagExtractor) -> None:
    facts = extract.facts(BARE)
    assert [fact.confidence for fact in facts] == sorted(
        (fact.confidence for fact in facts), reverse=True
    )
    known = {(*pair_of(one), one.relations[0].type) for one in GOLD if one.relations}
    found = {(fact.head, fact.tail, fact.relation) for fact in facts}
    assert len(found) == len(facts)
    assert len(found & known) / len(found | known) > 0.8
    for fact in facts:
        drug, effect = int(fact.head[1:]), int(fact.tail.partition(":")[0][1:])
        assert fact.names == (DRUGS[drug], EFFECTS[effect])
        assert 0 < fact.confidence <= 1
        own = {n for n, one in enumerate(GOLD) if pair_of(one) == (fact.head, fact.tail)}
        assert {support.document for support in fact.sentences} == own
        assert {support.pair for support in fact.sentences} == {("T1", "T2")}
        scores = [support.score for support in fact.sentences]
        assert scores == sorted(scores, reverse=True)
        if extract.denoise == "none":
            assert fact.confidence == scores[0]


def test_every_relation_is_a_fact_if_one_asks_for_it(extract: BagExtractor) -> None:
    everything = extract.facts(BARE, least=0.0)
    pairs = {pair_of(one) for one in GOLD}
    assert len(everything) == len(pairs) * (len(extract.relations) - 1)
    sure = extract.facts(BARE, least=0.9)
    assert 0 < len(sure) < len(everything)
    assert sure == [fact for fact in everything if fact.confidence >= 0.9]


def test_documents_get_the_relation_of_their_bag(extract: BagExtractor) -> None:
    found = extract(BARE)
    facts = {(fact.head, fact.tail): fact for fact in extract.facts(BARE)}
    for one, given in zip(found, BARE, strict=True):
        assert replace(one, relations=()) == given
        fact = facts.get(pair_of(given))
        if fact is None:
            assert one.relations == ()
        else:
            (relation,) = one.relations
            expected = Relation("R1", fact.relation, "T1", "T2", confidence=fact.confidence)
            assert relation == expected
    assert any(one.relations for one in found)


def test_relations_that_were_there_make_no_difference(extract: BagExtractor) -> None:
    odd = [replace(one, relations=(Relation("R9", "odd", "T2", "T1"),)) for one in GOLD]
    assert extract(odd) == extract(GOLD) == extract(BARE)
    assert extract.facts(odd) == extract.facts(BARE)
    assert extract.relations == (NO_RELATION, "causes", "eases")
    assert extract.types == ("Drug", "Pain")


def test_scores_come_with_facts(extract: BagExtractor) -> None:
    bags, scores_GR = extract.scores(GOLD)
    assert scores_GR.shape == (len({pair_of(one) for one in GOLD}), 3)
    for (head, tail), facts in zip(bags.pairs, bags.facts, strict=True):
        expected = holds(int(head[1:]), int(tail.partition(":")[0][1:]))
        assert facts == (frozenset({expected}) if expected else frozenset())
    bare, same = extract.scores(BARE)
    assert not any(bare.facts)
    np.testing.assert_array_equal(scores_GR, same)
    if extract.denoise == "none":
        likely = sentence_probabilities(extract.model, extract.trainer.prepared(bare.examples))
        expected_GR = np.array([likely[rows].max(0) for rows in bare.groups])
        np.testing.assert_allclose(scores_GR, expected_GR, atol=1e-6)


def test_documents_without_pairs_come_back(extract: BagExtractor) -> None:
    empty = Document("e", "nothing here .")
    assert extract([]) == []
    assert extract.facts([]) == []
    assert extract.facts([empty]) == []
    found = extract([empty, BARE[0], empty])
    assert (found[0], found[2]) == (empty, empty)


def test_a_report_shows_the_sentences_that_support_a_relation_most_first(
    extract: BagExtractor,
) -> None:
    shown = bag_report(extract, GOLD).errors["right"]
    scores = [[one["score"] or 0.0 for one in case["sentences"]] for case in shown]
    assert scores == [sorted(own, reverse=True) for own in scores]
    assert any(len(set(own)) > 1 for own in scores)


def test_it_needs_the_key_of_the_sites(learned: tuple[Any, Any]) -> None:
    method, state = learned
    with pytest.raises(KeyFileError, match="the words of this model are keyed"):
        method.pair.extractor(state, None, key=None)
    with pytest.raises(KeyFileError, match="not the key that the sites trained with"):
        method.pair.extractor(state, None, key=bytes(32))
