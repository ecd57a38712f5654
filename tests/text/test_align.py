"""Entities on tokens: what fits, what is left out, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from cases import each
from confide.errors import DataError
from confide.text.document import Document, Entity, Sentence
from confide.text.segment import segmented
from confide.text.tagging import all_spans, entities_from_spans, flat_spans
from text.generated import any_documents, joined, kinds, tokenised

TEXT, SENTENCES = joined([["severe", "chest", "pain"], ["no", "fever"]])
#        0      7     13    18 21


def document(*spans):
    entities = tuple(
        Entity(f"T{number}", kind, tuple(fragments))
        for number, (kind, *fragments) in enumerate(spans, 1)
    )
    return Document("d", TEXT, entities, sentences=SENTENCES, source="notes/a.ann")


def test_entities_that_fit():
    spans, problems = flat_spans(document(("P", (7, 17)), ("F", (21, 26)), ("S", (0, 6))))
    assert spans == [[(0, 1, "S"), (1, 3, "P")], [(1, 2, "F")]]
    assert problems == []


@each(
    ("entities", "kept", "kind", "lost"),
    [
        ([("P", (0, 6), (13, 17))], [[], []], "discontinuous", True),
        ([("P", (13, 20))], [[], []], "crosses-sentence", True),
        ([("P", (6, 7))], [[], []], "no-token", True),
        ([("P", (17, 18))], [[], []], "no-token", True),
        ([("P", (7, 17)), ("A", (7, 12))], [[(1, 3, "P")], []], "nested", True),
        ([("A", (7, 12)), ("P", (7, 17))], [[(1, 3, "P")], []], "nested", True),
        ([("A", (7, 12)), ("B", (7, 12))], [[(1, 2, "A")], []], "nested", True),
        ([("A", (7, 12)), ("A", (7, 12))], [[(1, 2, "A")], []], "duplicate", True),
        ([("A", (0, 12)), ("B", (7, 17))], [[(0, 2, "A")], []], "overlapping", True),
        ([("A", (8, 12))], [[(1, 2, "A")], []], "not-on-token-border", False),
        ([("A", (7, 13))], [[(1, 2, "A")], []], "not-on-token-border", False),
        ([("A", (17, 20))], [[], [(0, 1, "A")]], "not-on-token-border", False),
    ],
)
def test_what_does_not_fit_is_named(entities, kept, kind, lost):
    spans, problems = flat_spans(document(*entities))
    assert spans == kept
    assert [(problem.kind, problem.lost) for problem in problems] == [(kind, lost)]
    assert problems[0].where.startswith("notes/a.ann [")


@each(
    ("entities", "kept", "named"),
    [
        ([("P", (7, 17)), ("A", (7, 12)), ("B", (7, 12))], 3, []),
        ([("A", (0, 12)), ("B", (7, 17))], 2, []),
        (
            [("A", (7, 12)), ("A", (7, 12))],
            1,
            [("duplicate", "A T2 has the tokens and type of A T1")],
        ),
        ([("A", (8, 12))], 1, [("not-on-token-border", "A T1 taken to whole tokens, [7:12]")]),
        ([("P", (0, 6), (13, 17))], 0, [("discontinuous", "P T1 has 2 fragments")]),
        ([("P", (13, 20))], 0, [("crosses-sentence", "P T1 crosses a sentence's end")]),
        ([("P", (6, 7))], 0, [("no-token", "P T1 covers no token")]),
    ],
)
def test_entities_may_share_tokens_where_a_model_can_hold_them(entities, kept, named):
    spans, problems = all_spans(document(*entities))
    assert sum(map(len, spans)) == kept
    assert [(problem.kind, problem.what) for problem in problems] == named


def test_one_entity_may_take_part_in_two_problems_but_each_loss_is_named_once():
    spans, problems = flat_spans(document(("A", (0, 17)), ("B", (2, 4)), ("C", (7, 9))))
    assert spans == [[(0, 3, "A")], []]
    assert kinds(problems) == ["nested", "nested"]


def test_a_document_without_sentences_is_refused_only_with_entities():
    with pytest.raises(DataError, match="segment"):
        flat_spans(Document("d", TEXT, (Entity("T1", "P", ((0, 6),)),)))
    with pytest.raises(DataError, match="segment"):
        all_spans(Document("d", TEXT, (Entity("T1", "P", ((0, 6),)),)))
    assert flat_spans(Document("d", TEXT)) == all_spans(Document("d", TEXT)) == ([], [])


@given(tokenised())
def test_spans_and_entities_are_inverse(given_document):
    spans, problems = flat_spans(given_document)
    assert problems == []
    bare = replace(given_document, entities=())
    again = replace(bare, entities=entities_from_spans(bare, spans))
    assert flat_spans(again) == (spans, [])
    assert {(e.type, e.fragments) for e in again.entities} == {
        (e.type, e.fragments) for e in given_document.entities
    }


@given(any_documents())
def test_every_entity_is_kept_or_named(anything):
    ready = segmented(anything)
    if not ready.sentences and ready.entities:
        return  # a text of white space
    spans, problems = flat_spans(ready)
    lost = sum(problem.lost for problem in problems)
    assert sum(map(len, spans)) + lost == len(anything.entities)
    for sentence, row in zip(ready.sentences, spans, strict=True):
        borders = [place for start, end, _ in row for place in (start, end)]
        assert borders == sorted(borders)
        assert all(start < end <= len(sentence.tokens) for start, end, _ in row)


def test_confidences_come_along():
    bare = replace(document(), entities=())
    found = entities_from_spans(bare, [[(0, 1, "S")], [(0, 2, "F")]], confidences=[[0.25], [0.5]])
    assert [(e.id, e.type, e.fragments, e.confidence) for e in found] == [
        ("T1", "S", ((0, 6),), 0.25),
        ("T2", "F", ((18, 26),), 0.5),
    ]


@each("spans", [[[]], [[(0, 4, "X")], []], [[(1, 1, "X")], []], [[], [], []]])
def test_spans_that_do_not_fit_the_document_are_refused(spans):
    with pytest.raises(DataError):
        entities_from_spans(document(), spans)


def test_a_long_document_takes_linear_time():
    tokens = tuple((n * 2, n * 2 + 1) for n in range(50_000))
    entities = tuple(Entity(f"T{n}", "A", ((n * 4, n * 4 + 1),)) for n in range(25_000))
    long = Document("d", "x " * 50_000, entities, sentences=(Sentence(0, 99_999, tokens),))
    spans, problems = flat_spans(long)
    assert (len(spans[0]), problems) == (25_000, [])


def test_an_entity_of_a_blank_document_covers_no_token() -> None:
    blank = segmented(Document("a", "\r\n", (Entity("T1", "X", ((0, 2),)),)))
    spans, problems = flat_spans(blank)
    assert spans == []
    assert [(one.kind, one.lost) for one in problems] == [("no-token", True)]
