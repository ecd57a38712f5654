"""GLiNER, SpERT and DyGIE: one reader and writer, three shapes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import detect, read
from text.formats import published
from text.formats.samples import again, links, mentions
from text.generated import kinds, put, tokenised

SAMPLES = {"gliner": published.GLINER, "spert": published.SPERT, "dygie": published.DYGIE}


@each("name", SAMPLES)
def test_samples_are_detected_and_read(tmp_path, name):
    path = put(tmp_path, "a.json", SAMPLES[name])
    reading = read(path)
    assert detect(path) == reading.format == name
    found = mentions(reading.documents[0])
    assert found[:2] == [("ADE", "Rash"), ("Drug", "aspirin")]
    assert kinds(reading.problems) == (["key-ignored"] if name == "dygie" else [])


def test_ends_are_the_last_token_or_one_past_it(tmp_path):
    nested = read(put(tmp_path, "g.json", SAMPLES["gliner"])).documents[0]
    assert mentions(nested)[2] == ("Event", "Rash after aspirin")
    for name in ("spert", "dygie"):
        reading = read(put(tmp_path, "a.json", SAMPLES[name]))
        assert links(reading.documents[0]) == [("causes", "aspirin", "Rash")]


def test_numbers_of_dygie_count_from_the_document(tmp_path):
    document = read(put(tmp_path, "a.json", SAMPLES["dygie"])).documents[0]
    assert mentions(document)[2] == ("ADE", "fever")
    assert (document.id, len(document.sentences)) == ("d1", 2)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=30)
@given(document=tokenised())
def test_round_trip(tmp_path_factory, name, document):
    """Documents of tokens come back, relations inside a sentence too."""
    ids = [entity.id for entity in document.entities]
    relations = (Relation("R1", "to", ids[0], ids[0]),) if ids else ()
    document = Document(
        "d", document.text, document.entities, relations, sentences=document.sentences
    )
    folder = tmp_path_factory.mktemp("tokens")
    if name == "gliner":
        reading, problems = again([document], folder / "a.json", name)
    else:
        rows = _written(document, sentences=name == "dygie")
        reading, problems = read(put(folder, "a.json", json.dumps(rows)), name), []
    assert (problems, reading.problems) == ([], [])
    assert sorted(m for one in reading.documents for m in mentions(one)) == sorted(
        mentions(document)
    )
    assert [link for one in reading.documents for link in links(one)] == links(document)
    assert words(reading.documents) == words([document])


def _written(document, *, sentences):
    """DyGIE's record of a document, or SpERT's of its sentences; mentions are on whole tokens."""
    rows, first = [], 0
    for sentence in document.sentences:
        starts, ends = zip(*sentence.tokens, strict=True)
        own = [one for one in document.entities if sentence.start <= one.start < sentence.end]
        places = [(starts.index(one.start), ends.index(one.end)) for one in own]
        numbers = {one.id: number for number, one in enumerate(own)}
        related = [one for one in document.relations if one.head in numbers]
        row = {"tokens": list(document.token_texts(sentence))}
        if sentences:
            places = [(first + start, first + end) for start, end in places]
            pairs = [(places[numbers[one.head]], places[numbers[one.tail]]) for one in related]
            row["ner"] = [[*place, one.type] for place, one in zip(places, own, strict=True)]
            row["relations"] = [
                [*head, *tail, one.type] for (head, tail), one in zip(pairs, related, strict=True)
            ]
        else:
            row["entities"] = [
                {"start": start, "end": end + 1, "type": one.type}
                for (start, end), one in zip(places, own, strict=True)
            ]
            row["relations"] = [
                {"head": numbers[one.head], "tail": numbers[one.tail], "type": one.type}
                for one in related
            ]
        rows.append(row)
        first += len(starts)
    if not sentences:
        return rows
    keys = {"sentences": "tokens", "ner": "ner", "relations": "relations"}
    return [{"doc_key": "d", **{key: [row[own] for row in rows] for key, own in keys.items()}}]


def words(documents):
    return [one.token_texts(sentence) for one in documents for sentence in one.sentences]


def test_what_crosses_sentences_is_kept_or_named(tmp_path):
    text = "a b\nc d"
    entities = (Entity("T1", "X", ((0, 1),)), Entity("T2", "X", ((6, 7),)),
                Entity("T3", "X", ((2, 5),)))  # fmt: skip
    rows = tuple(s for s in _cut(text))
    document = Document("d", text, entities, (Relation("R", "r", "T1", "T2"),), sentences=rows)
    _, problems = again([document], tmp_path / "s.json", "gliner")
    assert kinds(problems) == ["crosses-sentence", "relation-unheld"]
    assert all(problem.lost for problem in problems)


def _cut(text):
    from confide.text.document import Sentence

    offset = 0
    for line in text.split("\n"):
        tokens = tuple((offset + 2 * n, offset + 2 * n + 1) for n in range(len(line.split())))
        yield Sentence(tokens[0][0], tokens[-1][1], tokens)
        offset += len(line) + 1


def test_mentions_of_tokens_that_are_not_there_are_lost_with_their_links(tmp_path):
    entities = [{"type": "X", "start": a, "end": b} for a, b in ((1, 5), (1, 1), (0, 1))]
    relations = [{"type": "r", "head": a, "tail": b} for a, b in ((0, 2), (2, 9))]
    row = {"tokens": ["a", "b"], "entities": entities, "relations": relations}
    reading = read(put(tmp_path, "a.json", json.dumps(row)), "spert")
    assert mentions(reading.documents[0]) == [("X", "a")]
    assert kinds(reading.problems) == [
        "beyond-text", "empty-span", "dangling-relation", "dangling-relation",
    ]  # fmt: skip


@each("row", [
    {"tokenized_text": "a", "ner": []},
    {"tokenized_text": ["a"], "ner": [[0, "one", "X"]]},
    {"tokenized_text": ["a"], "ner": [[0]]},
    {"tokenized_text": ["a"], "ner": [[0, 0, ""]]},
    {"tokenized_text": ["a"], "ner": [[True, 0, "X"]]},
    {"tokenized_text": ["a"], "ner": {"a": 1}},
])  # fmt: skip
def test_other_forms_are_refused(tmp_path, row):
    with pytest.raises(FormatError):
        read(put(tmp_path, "a.json", json.dumps(row)), "gliner")


def test_nothing_to_read(tmp_path):
    with pytest.raises(DataError, match="no document"):
        read(put(tmp_path, "a.json", "[]"), "spert")
    empty = json.dumps([{"tokenized_text": [], "ner": []}])
    with pytest.raises(DataError, match="no document"):
        read(put(tmp_path, "a.json", empty), "gliner")
