"""CoNLL-U with entities in MISC."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity
from confide.text.formats import detect, read, write
from text.formats import published
from text.formats.samples import again, mentions
from text.generated import kinds, put, tokenised


def test_ranges_are_one_token_and_empty_nodes_none(tmp_path):
    """Ranges were read as tokens of their own."""
    path = put(tmp_path, "a.conllu", published.CONLLU)
    reading = read(path)
    assert detect(path) == reading.format == "conllu"
    first, second = reading.documents
    assert (first.id, first.text) == ("d1", "Vámonos al Río Tajo.")
    assert first.token_texts(first.sentences[0]) == ("Vámonos", "al", "Río", "Tajo", ".")
    assert mentions(first) == [("LOC", "al Río Tajo")]
    assert mentions(second) == [("PER", "Ada")]
    assert kinds(reading.problems) == ["range-widened"]


def test_brackets_may_be_nested(tmp_path):
    reading = read(put(tmp_path, "g.conllu", published.GUM))
    (document,) = reading.documents
    assert document.text == "Ada Lovelace of London"
    assert mentions(document) == [
        ("person", "Ada Lovelace"), ("place", "London"), ("place", "of London"),
    ]  # fmt: skip
    open_ended = published.GUM.replace("Entity=1)", "_")
    assert kinds(read(put(tmp_path, "g.conllu", open_ended)).problems) == ["dangling-bracket"]


def test_without_entities_it_is_text_that_is_cut(tmp_path):
    plain = published.CONLLU.replace("NER=", "X=")
    reading = read(put(tmp_path, "a.conllu", plain))
    assert [one.entities for one in reading.documents] == [(), ()]
    assert [(p.kind, p.lost) for p in reading.problems] == [("no-tags", False)]


@settings(max_examples=30)
@given(document=tokenised())
def test_round_trip(tmp_path_factory, document):
    reading, problems = again([document], tmp_path_factory.mktemp("u") / "a.conllu", "conllu")
    (found,) = reading.documents
    assert (problems, reading.problems and kinds(reading.problems)) in (([], []), ([], ["no-tags"]))
    assert (found.text, found.sentences) == (document.text, document.sentences)
    assert sorted(mentions(found)) == sorted(mentions(document))


def test_no_blank_after_a_token(tmp_path):
    document = Document("n 1", "Rash, no pain.", (Entity("T1", "A b|c", ((0, 4),)),))
    (found,) = again([document], tmp_path / "a.conllu", "conllu")[0].documents
    assert (found.id, found.text, mentions(found)) == ("n 1", document.text, [("A_b_c", "Rash")])
    assert kinds(write([Document("d", "a  b")], tmp_path / "b.conllu", "conllu")) == [
        "white-space-unheld"
    ]


@pytest.mark.parametrize("line", ["1\ta\t_", "x" + "\t_" * 9])
def test_lines_of_another_form(tmp_path, line):
    with pytest.raises(FormatError, match="ten, cut by tabs"):
        read(put(tmp_path, "a.conllu", f"{published.CONLLU}\n{line}\n"), "conllu")
    with pytest.raises(DataError, match="no word"):
        read(put(tmp_path, "b.conllu", "# nothing\n"), "conllu")


@pytest.mark.parametrize("numbers", [(0, 1), (0, 0), (1, 1), (2, 1)])
def test_words_whose_numbers_do_not_rise_are_words(tmp_path, numbers):
    """A word 0 came to an IndexError, and of words of one number the second was lost."""
    words = zip(numbers, ("Ada", "slept"), ("NER=B-PER", "_"), strict=True)
    text = "".join(f"{n}\t{word}\t_\t_\t_\t_\t_\t_\t_\t{misc}\n" for n, word, misc in words)
    reading = read(put(tmp_path, "a.conllu", text + "\n"), "conllu")
    (document,) = reading.documents
    assert (document.text.strip(), reading.problems) == ("Ada slept", [])
    assert [document.surface(one) for one in document.entities] == ["Ada"]
