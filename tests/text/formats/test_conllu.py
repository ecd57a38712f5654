"""CoNLL-U with entities in MISC."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cases import each
from confide.errors import DataError, FormatError
from confide.text.formats import detect, read
from confide.text.tagging import flat_spans, tags_from_spans
from text.formats import published
from text.formats.samples import mentions
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
    assert (reading.problems[0].where, second.source) == (f"{path}:9", f"{path}:16")


@each(("second", "found"), [("I-LOC", []), ("LOC", []), ("B-PER", ["range-tagged-twice"])])
def test_a_range_has_one_type(tmp_path, second, found):
    """Its words may all be tagged; what another type would add is named as lost."""
    words = (("1-2", "del", "_"), ("1", "de", "NER=B-LOC"), ("2", "el", f"NER={second}"))
    text = "\n".join("\t".join((n, word, *"_" * 7, misc)) for n, word, misc in words)
    reading = read(put(tmp_path, "a.conllu", text + "\n"), "conllu")
    assert mentions(reading.documents[0]) == [("LOC", "del")]
    assert [(one.kind, one.lost) for one in reading.problems] == [(kind, True) for kind in found]


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
    lines = ["# newdoc"]
    for sentence, spans in zip(document.sentences, flat_spans(document)[0], strict=True):
        tags = tags_from_spans(len(sentence.tokens), spans, "iob2")
        for number, ((start, end), tag) in enumerate(zip(sentence.tokens, tags, strict=True), 1):
            misc = "_" if tag == "O" else f"NER={tag}"
            lines.append(f"{number}\t{document.text[start:end]}" + "\t_" * 7 + f"\t{misc}")
        lines.append("")
    path = put(tmp_path_factory.mktemp("u"), "a.conllu", "\n".join(lines) + "\n")
    reading = read(path, "conllu")
    (found,) = reading.documents
    assert reading.problems == [] or kinds(reading.problems) == ["no-tags"]
    assert (found.text, found.sentences) == (document.text, document.sentences)
    assert sorted(mentions(found)) == sorted(mentions(document))


def test_no_blank_after_a_token(tmp_path):
    glued = published.CONLLU.replace("\tNER=", "\tSpaceAfter=No|NER=")
    plain = read(put(tmp_path, "a.conllu", published.CONLLU)).documents[0]
    joined = read(put(tmp_path, "b.conllu", glued)).documents[0]
    assert len(joined.text) < len(plain.text)
    assert joined.text.replace(" ", "") == plain.text.replace(" ", "")
    assert mentions(joined)[0][0] == mentions(plain)[0][0]


@each("line", ["1\ta\t_", "x" + "\t_" * 9])
def test_lines_of_another_form(tmp_path, line):
    with pytest.raises(FormatError, match="ten, cut by tabs"):
        read(put(tmp_path, "a.conllu", f"{published.CONLLU}\n{line}\n"), "conllu")
    with pytest.raises(DataError, match="no word"):
        read(put(tmp_path, "b.conllu", "# nothing\n"), "conllu")


@each("numbers", [(0, 1), (0, 0), (1, 1), (2, 1)])
def test_words_whose_numbers_do_not_rise_are_words(tmp_path, numbers):
    """A word 0 came to an IndexError, and of words of one number the second was lost."""
    words = zip(numbers, ("Ada", "slept"), ("NER=B-PER", "_"), strict=True)
    text = "".join(f"{n}\t{word}\t_\t_\t_\t_\t_\t_\t_\t{misc}\n" for n, word, misc in words)
    reading = read(put(tmp_path, "a.conllu", text + "\n"), "conllu")
    (document,) = reading.documents
    assert (document.text.strip(), reading.problems) == ("Ada slept", [])
    assert [document.surface(one) for one in document.entities] == ["Ada"]
