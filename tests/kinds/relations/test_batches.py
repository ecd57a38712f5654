"""Documents to relation examples: which pairs, what holds between them, what no pair covers."""

from __future__ import annotations

import zipfile
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.kinds.relations.batches import (
    NO_RELATION,
    RelationExample,
    Rules,
    candidates,
    predicted_labels,
    type_pairs,
    with_labels,
    with_relations,
)
from confide.text.document import Document, Entity, Relation, pair_attributes
from confide.text.formats import read
from text.generated import any_documents, kinds

TEXT = "Aspirin and Lasix caused rash. Later a cough came. He took Lasix."
PLACES = {"a": (0, 7), "l": (12, 17), "r": (25, 29), "c": (39, 44), "m": (59, 64)}
TYPES = {"a": "Drug", "l": "Drug", "r": "Effect", "c": "Effect", "m": "Drug"}
CONCEPTS = {"a": "D1", "l": "D2", "r": "E1", "c": "E2", "m": "D2"}


def document(*relations, names="alrcm", level="entity", attributes=()):
    entities = tuple(
        Entity(name, TYPES[name], (PLACES[name],), concepts=(CONCEPTS[name],)) for name in names
    )
    links = tuple(
        Relation(f"R{n}", kind, head, tail, level=level)
        for n, (kind, head, tail) in enumerate(relations, 1)
    )
    return Document("d", TEXT, entities, links, attributes=attributes)


def pairs(found):
    return ["".join(example.pair) for example in found.examples]


def labels(found):
    return {"".join(e.pair): e.relation for e in found.examples if e.relation != NO_RELATION}


class TestWhichPairs:
    def test_both_orders_within_a_sentence(self):
        found = candidates([document()])
        assert pairs(found) == ["al", "la", "ar", "ra", "lr", "rl"]
        assert found.relations == {NO_RELATION: 6}

    def test_one_pair_in_the_order_of_the_text(self):
        assert pairs(candidates([document()], Rules(direction="undirected"))) == ["al", "ar", "lr"]

    def test_types(self):
        only = frozenset({("Drug", "Effect")})
        assert pairs(candidates([document()], Rules(types=only))) == ["ar", "lr"]
        turned = frozenset({("Effect", "Drug")})
        rules = Rules(types=turned, direction="undirected")
        assert pairs(candidates([document()], rules)) == ["ra", "rl"]
        both = Rules(types=only | turned, direction="undirected")
        assert pairs(candidates([document()], both)) == ["ar", "lr"]

    def test_each_entity_alone(self):
        drugs = Rules(types=frozenset({("Drug", "Drug")}), alone=True)
        found = candidates([document(("absent", "a", "a"), ("absent", "r", "r"))], drugs)
        assert pairs(found) == ["aa", "ll", "mm"]
        assert (labels(found), kinds(found.problems)) == ({"aa": "absent"}, ["relation-types"])
        assert type_pairs([document(("absent", "r", "r"))]) == {("Effect", "Effect")}
        both = document(("absent", "r", "r"), ("causes", "a", "r"))
        assert type_pairs([both]) == {("Drug", "Effect")}  # no pair of two effects is asked about

    def test_sentences_between(self):
        rules = [Rules(direction="undirected", max_sentences=n) for n in (0, 1, 2, None)]
        assert [len(pairs(candidates([document()], one))) for one in rules] == [3, 7, 10, 10]
        assert "rc" in pairs(candidates([document()], rules[1]))

    def test_tokens_between(self):
        found = candidates([document()], Rules(direction="undirected", max_tokens=1))
        assert pairs(found) == ["al", "lr"]  # "and"; "caused"
        found = candidates([document()], Rules(direction="undirected", max_tokens=0))
        assert pairs(found) == []
        rules = Rules(direction="undirected", max_sentences=None, max_tokens=3)
        assert pairs(candidates([document()], rules)) == ["al", "ar", "lr", "rc"]  # ". Later a"

    def test_stated_pairs_and_no_others(self):
        stated = document(
            ("causes", "l", "r"), attributes=pair_attributes([("a", "m"), ("l", "r")])
        )
        found = candidates([stated], Rules(types=frozenset(), max_sentences=0))
        assert pairs(found) == ["am", "lr"]
        assert labels(found) == {"lr": "causes"}
        assert pairs(candidates([document(attributes=pair_attributes([]))])) == []

    def test_a_stated_pair_of_nothing_is_named(self):
        odd = document(attributes=pair_attributes([("a", "x"), ("a", "a"), ("a", "l")]))
        found = candidates([odd])
        assert (pairs(found), kinds(found.problems)) == (["al"], ["dangling-pair"] * 2)


class TestWhatAnExampleHolds:
    def test_one_sentence(self):
        example = candidates([Document("e", "x"), document(("causes", "l", "r"))]).examples[4]
        assert example == RelationExample(
            id="d:l:r",
            text="Aspirin and Lasix caused rash.",
            head=((12, 17),),
            tail=((25, 29),),
            head_type="Drug",
            tail_type="Effect",
            relation="causes",
            document=1,
            pair=("l", "r"),
        )

    def test_a_window_of_sentences(self):
        found = candidates([document(names="cm")], Rules(max_sentences=1))
        one, other = found.examples
        assert one.text == "Later a cough came. He took Lasix."
        assert (one.text[slice(*one.head[0])], one.text[slice(*one.tail[0])]) == ("cough", "Lasix")
        assert (other.pair, other.text) == (("m", "c"), one.text)

    def test_fragments_and_overlap(self):
        text = "So. Chest and back pain."
        entities = (
            Entity("T1", "S", ((4, 9), (19, 23))),
            Entity("T2", "S", ((14, 23),)),
            Entity("T3", "P", ((4, 9),)),
        )
        relations = (Relation("R1", "with", "T1", "T2"), Relation("R2", "at", "T1", "T3"))
        found = candidates([Document("d", text, entities, relations)], Rules(max_tokens=0))
        assert labels(found) == {"T1T2": "with", "T1T3": "at"}  # nothing is between them
        example = next(e for e in found.examples if e.pair == ("T1", "T3"))
        assert (example.text, example.head, example.tail) == (
            "Chest and back pain.", ((0, 5), (15, 19)), ((0, 5),),
        )  # fmt: skip

    def test_an_entity_over_two_sentences(self):
        crossing = (Entity("x", "X", ((25, 37),)), Entity("c", "Effect", ((39, 44),)))
        (example,) = candidates(
            [Document("d", TEXT, crossing)], Rules(direction="undirected")
        ).examples
        assert example.text == TEXT[:50]

    @given(any_documents(), st.sampled_from([0, 1, None]), st.sampled_from([0, 2, None]))
    def test_any_document(self, given_document, sentences, tokens):
        found = candidates([given_document], Rules(max_sentences=sentences, max_tokens=tokens))
        entities = {entity.id: entity for entity in given_document.entities}
        for example in found.examples:
            for fragments, name in zip((example.head, example.tail), example.pair, strict=True):
                surface = " ".join(example.text[start:end] for start, end in fragments)
                assert surface == given_document.surface(entities[name])
        gold = {(r.type, r.head, r.tail) for r in given_document.relations}
        positive = sum(example.relation != NO_RELATION for example in found.examples)
        assert positive + sum(found.missed.values()) == len(gold)
        assert len(found.problems) == sum(found.missed.values())


class TestGold:
    def test_an_entity_that_is_head_and_tail(self):
        found = candidates([document(("with", "a", "l"), ("causes", "l", "r"), ("of", "r", "l"))])
        assert labels(found) == {"al": "with", "lr": "causes", "rl": "of"}
        assert (found.missed, found.problems) == ({}, [])

    def test_undirected_relations_hold_either_way(self):
        given_document = document(("causes", "r", "a"), ("causes", "a", "r"))
        found = candidates([given_document], Rules(direction="undirected"))
        assert (labels(found), found.missed) == ({"ar": "causes"}, {})

    def test_a_relation_that_stands_twice_counts_once(self):
        found = candidates([document(("causes", "a", "r"), ("causes", "a", "r"))])
        assert (labels(found), found.missed) == ({"ar": "causes"}, {})

    @each(
        ("relation", "rules", "kind"),
        [
            (("causes", "a", "c"), Rules(), "relation-too-far"),
            (("causes", "a", "r"), Rules(max_tokens=1), "relation-too-far"),
            (("causes", "r", "a"), Rules(types=frozenset({("Drug", "Effect")})), "relation-types"),
            (("causes", "a", "x"), Rules(), "relation-without-mention"),
            (("causes", "a", "a"), Rules(), "relation-to-itself"),
        ],
    )
    def test_what_no_pair_covers_is_counted_and_named(self, relation, rules, kind):
        found = candidates([document(relation), document(("with", "a", "l"))], rules)
        assert found.missed["causes"] == 1
        problem = found.problems[0]
        assert (problem.kind, problem.where, problem.lost) == (kind, "d", True)

    def test_of_several_relations_of_a_pair_the_first_is_kept(self):
        found = candidates([document(("causes", "a", "r"), ("treats", "a", "r"))])
        assert labels(found) == {"ar": "causes"}
        assert (found.missed, kinds(found.problems)) == ({"treats": 1}, ["several-relations"])

    def test_a_pair_that_is_not_asked_about(self):
        given_document = document(("of", "l", "a"), attributes=pair_attributes([("a", "l")]))
        found = candidates([given_document])
        assert (labels(found), kinds(found.problems)) == ({}, ["pair-not-stated"])
        found = candidates([given_document], Rules(direction="undirected"))
        assert (labels(found), found.missed) == ({"al": "of"}, {})

    def test_no_relation_by_name(self):
        found = candidates([document((NO_RELATION, "a", "r"))])
        assert (labels(found), found.missed) == ({}, {})


class TestConcepts:
    """D1 is said once, D2 by l and m, E1 by r, E2 by c."""

    def test_every_pair_of_their_mentions_has_the_relation(self):
        given_document = document(("causes", "D2", "E1"), level="concept")
        assert labels(candidates([given_document])) == {"lr": "causes"}
        found = candidates([given_document], Rules(max_sentences=2))
        assert labels(found) == {"lr": "causes", "mr": "causes"}

    def test_missed_only_where_no_pair_is_looked_at(self):
        found = candidates([document(("causes", "D2", "E2"), level="concept")])
        assert (found.missed, kinds(found.problems)) == ({"causes": 1}, ["relation-too-far"])
        found = candidates([document(("causes", "D2", "E9"), level="concept")])
        assert kinds(found.problems) == ["relation-without-mention"]

    def test_types_of_training_relations(self):
        one = document(("causes", "D2", "E1"), level="concept")
        other = document(("with", "a", "l"), ("of", "x", "a"), (NO_RELATION, "r", "c"))
        assert type_pairs([one]) == {("Drug", "Effect")}
        assert type_pairs([one, other]) == {("Drug", "Effect"), ("Drug", "Drug")}


UNDIRECTED = Rules(direction="undirected")


@pytest.mark.data
class TestCorpora:
    @each(
        ("file", "examples"),
        [
            ("gad_re/1/train.tsv", {"related": 2520, NO_RELATION: 2276}),
            ("gad_re/1/test.tsv", {"related": 281, NO_RELATION: 253}),
            ("euadr_re/3", {"related": 262, NO_RELATION: 93}),
        ],
    )
    def test_one_pair_for_each_sentence(self, corpora, file, examples):
        found = candidates(read(corpora / file).documents)
        assert (found.relations, found.missed, found.problems) == (
            dict(sorted(examples.items())), {}, [],
        )  # fmt: skip

    @each(("part", "rows"), [("train", 4169), ("dev", 2427), ("test", 3469)])
    def test_chemprot(self, corpora, part, rows):
        documents = read(corpora / "chemprot_re" / f"{part}.txt").documents
        found = candidates(documents)
        assert len(found.examples) == rows
        types = Counter(r.type for document in documents for r in document.relations)
        assert (found.relations, found.missed) == (dict(sorted(types.items())), {})

    def test_ddi(self, corpora, tmp_path):
        with zipfile.ZipFile(corpora / "ddi2013" / "DDICorpus-2013.zip") as archive:
            archive.extractall(tmp_path)
        train = candidates(read(tmp_path / "DDICorpus/Train").documents, UNDIRECTED)
        assert train.relations == {
            "advise": 826, "effect": 1687, "int": 188, "mechanism": 1319,
            NO_RELATION: 27792 - 826 - 1687 - 188 - 1319 - 1,  # the one without a type is left out
        }  # fmt: skip
        folder = tmp_path / "DDICorpus/Test/Test for DDI Extraction task"
        test = candidates(read(folder).documents, UNDIRECTED)
        assert test.relations == {
            "advise": 221, "effect": 360, "int": 96, "mechanism": 302, NO_RELATION: 4737,
        }  # fmt: skip
        assert len(test.examples) == 5716
        assert (train.missed, test.missed, train.problems + test.problems) == ({}, {}, [])

    def test_concepts_of_biored(self, corpora):
        documents = read(corpora / "biored" / "Dev.PubTator").documents
        rules = Rules(types=type_pairs(documents), direction="undirected", max_sentences=None)
        assert candidates(documents, rules).missed == {}
        near = candidates(documents, Rules(types=rules.types, direction="undirected"))
        assert sum(near.missed.values()) == 204  # of 1,162
        assert set(kinds(near.problems)) == {"relation-too-far"}

    def test_ade(self, corpora):
        documents = read(corpora / "ade_corpus_v2", "ade-positive").documents
        found = candidates(documents, Rules(types=type_pairs(documents)))
        assert found.relations == {"adverse-effect": 6821, "dose": 279, NO_RELATION: 191}
        assert found.missed == {}


# --- what a model says of examples --------------------------------------------------------------


class TestWhatAModelSays:
    RULES = Rules(direction="undirected")
    GIVEN = (document(("causes", "r", "a"), ("treats", "a", "l")), document(("causes", "l", "r")))

    def likely(self, found, **relations):
        """The probabilities of a model that is sure of the pairs named."""
        rows = []
        for example in found.examples:
            name = relations.get(f"{''.join(example.pair)}{example.document}")
            rest = {"causes": 0.1, NO_RELATION: 0.6, "treats": 0.3}
            rows.append({**rest, name: 0.9} if name else rest)
        return rows

    def test_a_relation_that_is_not_known_is_none(self):
        examples = candidates(self.GIVEN, self.RULES).examples
        assert [one.relation for one in examples] == [
            "treats", "causes", NO_RELATION, NO_RELATION, NO_RELATION, "causes",
        ]  # fmt: skip
        found = with_labels(examples, {"causes", NO_RELATION})
        assert [one.relation for one in found] == [
            NO_RELATION, "causes", NO_RELATION, NO_RELATION, NO_RELATION, "causes",
        ]  # fmt: skip
        assert {one.relation for one in with_labels(examples, set())} == {NO_RELATION}
        assert with_labels(examples, {"causes", "treats", NO_RELATION}) == examples
        ids = [(one.id, one.pair, one.text) for one in examples]
        assert [(one.id, one.pair, one.text) for one in found] == ids

    def test_what_is_predicted_takes_the_place_of_what_was_there(self):
        found = candidates(self.GIVEN, self.RULES)
        likely = self.likely(found, ar0="treats", lr0="causes", al1="causes")
        one, two = with_relations(self.GIVEN, found.examples, likely)
        assert one.relations == (
            Relation("R1", "treats", "a", "r", confidence=0.9),
            Relation("R2", "causes", "l", "r", confidence=0.9),
        )
        assert two.relations == (Relation("R1", "causes", "a", "l", confidence=0.9),)
        assert (one.entities, one.text) == (self.GIVEN[0].entities, TEXT)
        assert len(self.GIVEN[0].relations) == 2  # what was given stays as it is

    def test_documents_without_a_pair_keep_their_place(self):
        empty = Document("e", "Nothing here.", relations=(Relation("R1", "causes", "a", "r"),))
        given = [empty, self.GIVEN[0], empty]
        found = candidates(given, self.RULES)
        predicted = with_relations(given, found.examples, self.likely(found, ar1="treats"))
        assert [len(one.relations) for one in predicted] == [0, 1, 0]

    def test_of_several_that_are_as_likely_the_first_counts(self):
        found = candidates(self.GIVEN[:1], self.RULES)
        rows = [{NO_RELATION: 0.4, "causes": 0.4, "treats": 0.2}] * len(found.examples)
        assert with_relations(self.GIVEN[:1], found.examples, rows)[0].relations == ()
        rows = [{"causes": 0.4, NO_RELATION: 0.4, "treats": 0.2}] * len(found.examples)
        assert len(with_relations(self.GIVEN[:1], found.examples, rows)[0].relations) == 3

    def test_as_many_rows_as_examples(self):
        found = candidates(self.GIVEN, self.RULES)
        with pytest.raises(ValueError, match="zip"):
            with_relations(self.GIVEN, found.examples, self.likely(found)[1:])

    def test_labels_of_examples(self):
        found = candidates(self.GIVEN, self.RULES)
        predicted = with_relations(
            self.GIVEN, found.examples, self.likely(found, ar0="treats", lr1="causes")
        )
        assert predicted_labels(found, predicted) == [
            NO_RELATION, "treats", NO_RELATION, NO_RELATION, NO_RELATION, "causes",
        ]  # fmt: skip

    def test_a_relation_the_other_way_round_is_of_another_pair(self):
        turned = [document(("causes", "r", "a")), document()]
        directed = candidates(self.GIVEN, Rules())
        by_place = {
            ("".join(e.pair), e.document): label
            for e, label in zip(directed.examples, predicted_labels(directed, turned), strict=True)
        }
        assert by_place["ra", 0] == "causes"
        assert by_place["ar", 0] == by_place["ra", 1] == NO_RELATION

    @given(any_documents(), st.sampled_from(["directed", "undirected"]))
    def test_what_is_written_is_read_again(self, given_document, direction):
        """A model that is sure of each gold label finds just the relations that are covered."""
        rules = Rules(direction=direction, max_sentences=None)
        found = candidates([given_document], rules)
        sure = [{one.relation: 1.0} for one in found.examples]
        predicted = with_relations([given_document], found.examples, sure)
        assert predicted_labels(found, predicted) == [one.relation for one in found.examples]
        again = candidates(predicted, rules)
        assert [one.relation for one in again.examples] == [one.relation for one in found.examples]
        assert not again.missed
