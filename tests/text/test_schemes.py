"""Tags to spans and back; seqeval's default mode and conlleval's cases are the oracles."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError, SettingsError
from confide.text import tagging
from confide.text.tagging import (
    SCHEMES,
    contradiction,
    detect_scheme,
    parse_tag,
    scheme_named,
    spans_from_tags,
    tags_from_spans,
)
from text.generated import TYPES, flat, tag_sequences

LOOSE = st.lists(
    st.just("O") | st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from("XY")),
    max_size=12,
)


def spans(tags, scheme="iob2"):
    return spans_from_tags(tags.split(), scheme)[0]


def broken(tags, scheme):
    return [fault.position for fault in spans_from_tags(tags.split(), scheme)[1]]


@given(LOOSE, st.sampled_from(SCHEMES))
def test_any_sequence_gives_the_entities_of_seqeval(tags, scheme):
    from seqeval.metrics.sequence_labeling import get_entities

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = [(start, last + 1, kind) for kind, start, last in get_entities(tags)]
    assert spans_from_tags(tags, scheme)[0] == theirs


@given(st.data(), st.sampled_from(["iob1", "iob2", "iobes", "bilou"]))
def test_spans_and_tags_are_inverse_and_nothing_is_malformed(data, scheme):
    tags, expected = data.draw(tag_sequences(scheme))
    assert spans_from_tags(tags, scheme) == (expected, [])


@given(st.data())
def test_io_joins_neighbours_of_one_type_only(data):
    tags, expected = data.draw(tag_sequences("io"))
    joined = []
    for start, end, kind in expected:
        if joined and joined[-1][1:] == (start, kind):
            joined[-1] = (joined[-1][0], end, kind)
        else:
            joined.append((start, end, kind))
    assert spans_from_tags(tags, "io") == (joined, [])


@each(
    ("scheme", "tags"),
    [
        ("iob1", "I-X B-X I-X I-Y O I-X"),
        ("iob2", "B-X B-X I-X B-Y O B-X"),
        ("iobes", "S-X B-X E-X S-Y O S-X"),
        ("bilou", "U-X B-X L-X U-Y O U-X"),
        ("io", "I-X I-X I-X I-Y O I-X"),
    ],
)
def test_the_same_entities_in_every_scheme(scheme, tags):
    entities = [(0, 1, "X"), (1, 3, "X"), (3, 4, "Y"), (5, 6, "X")]
    assert tags_from_spans(6, entities, scheme) == tags.split()
    expected = [(0, 3, "X"), *entities[2:]] if scheme == "io" else entities
    assert spans(tags, scheme) == expected


@each(
    ("tags", "expected"),
    [
        # conlleval's startOfChunk and endOfChunk, case by case
        ("B-X B-X", [(0, 1, "X"), (1, 2, "X")]),
        ("I-X B-X", [(0, 1, "X"), (1, 2, "X")]),
        ("B-X O I-X", [(0, 1, "X"), (2, 3, "X")]),
        ("I-X I-X O", [(0, 2, "X")]),
        ("B-X I-Y", [(0, 1, "X"), (1, 2, "Y")]),
        ("I-X I-Y I-X", [(0, 1, "X"), (1, 2, "Y"), (2, 3, "X")]),
        ("E-X E-X", [(0, 1, "X"), (1, 2, "X")]),
        ("B-X E-X I-X", [(0, 2, "X"), (2, 3, "X")]),
        ("O E-X O", [(1, 2, "X")]),
        ("B-X I-X E-X", [(0, 3, "X")]),
        # neighbours in IOBES stay two, where conlleval.pl joins E-X and S-X
        ("B-X E-X S-X", [(0, 2, "X"), (2, 3, "X")]),
        ("S-X I-X", [(0, 1, "X"), (1, 2, "X")]),
        ("", []),
    ],
)
def test_the_cases_of_conlleval(tags, expected):
    assert spans(tags, "iobes") == expected
    assert spans(tags, "iob2") == expected


@each(
    ("scheme", "tags", "where"),
    [
        ("iob2", "O I-X I-X", [1]),
        ("iob2", "B-X I-Y I-Y", [1]),
        ("iob2", "B-X I-X B-X", []),
        ("iob2", "B-X E-X", [1]),
        ("iob1", "B-X O I-X B-X", [0]),
        ("iob1", "I-Y B-X", [1]),
        ("iob1", "I-X B-X I-X", []),
        ("iobes", "B-X O", [0]),
        ("iobes", "B-X I-X", [1]),
        ("iobes", "O E-X S-X", [1]),
        ("iobes", "I-X E-X", [0]),
        ("iobes", "B-X B-X E-X", [0]),
        ("iobes", "B-X M-X E-X W-X", []),
        ("bilou", "B-X I-X L-X U-Y", []),
        ("bilou", "B-X E-X", [1]),
        ("bilou", "U-X L-X", [1]),
        ("io", "I-X I-Y PERSON", []),
        ("io", "B-X", [0]),
    ],
)
def test_every_malformed_tag_is_named(scheme, tags, where):
    assert broken(tags, scheme) == where


def test_bare_and_plain_tags_and_other_separators():
    assert spans("B I O B") == [(0, 2, ""), (3, 4, "")]
    assert spans("PERSON PERSON O ORG", "io") == [(0, 2, "PERSON"), (3, 4, "ORG")]
    assert parse_tag("B-creative-work") == ("B", "creative-work")
    assert parse_tag("I_AE") == parse_tag("I:AE") == ("I", "AE")
    assert parse_tag("Ivory") == ("", "Ivory")
    assert tags_from_spans(3, [(0, 2, "")], "iobes") == ["B", "E", "O"]


@each("wrong", [[(0, 2, "X"), (1, 3, "X")], [(1, 1, "X")], [(2, 5, "X")], [(-1, 1, "X")]])
def test_spans_that_cannot_be_tags_are_refused(wrong):
    with pytest.raises(DataError):
        tags_from_spans(4, wrong, "iob2")


@given(st.data(), st.sampled_from(["iob1", "iob2", "iobes", "bilou"]))
def test_no_scheme_passes_for_another(data, scheme):
    """A certain guess explains every tag; and the entities are right whatever the guess."""
    rows = data.draw(st.lists(tag_sequences(scheme, max_size=6), min_size=1, max_size=4))
    guess = detect_scheme([tags for tags, _ in rows])
    for tags, expected in rows:
        found, faults = spans_from_tags(tags, guess.scheme)
        assert found == expected
        assert not (guess.certain and faults)
    # a distinctive corpus is told for certain
    rows.append((tags_from_spans(4, [(0, 1, "A"), (1, 3, "A")], scheme), []))
    guess = detect_scheme([tags for tags, _ in rows])
    assert (guess.scheme, guess.certain) == (scheme, True)


@each(
    ("tags", "scheme", "certain"),
    [
        ("B-X I-X O", "iob2", True),
        ("I-X I-X O B-Y", "iob2", False),  # mixed: both IOB1 and IOB2 are broken
        ("I-X I-X B-X", "iob1", True),
        ("S-X O", "iobes", True),
        ("B-X M-X E-X", "iobes", True),
        ("U-X O", "bilou", True),
        ("PERSON O", "io", True),
        ("I-X O", "iob1", False),  # IOB1 or IO
        ("B-X I-X O S-X", "iobes", False),
        ("O O", "iob2", False),
        ("", "iob2", False),
    ],
)
def test_detection(tags, scheme, certain):
    guess = detect_scheme([tags.split()])
    assert (guess.scheme, guess.certain) == (scheme, certain)


def test_iob1_stated_as_iob2_contradicts_but_a_slip_does_not():
    iob1 = [["O"], ["I-X", "I-X", "B-X"]]
    found = contradiction(iob1, "iob2")
    assert found is not None
    sequence, fault, better = found
    assert (sequence, fault.position, better) == (1, 0, "iob1")
    slip = [["B-X", "I-X", "O", "B-X", "O"], ["O", "I-X"]]
    assert contradiction(slip, "iob2") is None
    assert contradiction([["B-X", "E-X"]], "iob2") is not None
    assert contradiction([["B-X", "I-X", "O"]], "iobes") is not None
    assert contradiction([["B-X", "O"]], "io") is not None
    assert contradiction([["O", "O"]], "bilou") is None


@given(st.data(), st.sampled_from(["iob1", "iob2", "iobes", "bilou"]))
def test_the_right_scheme_never_contradicts(data, scheme):
    rows = data.draw(st.lists(tag_sequences(scheme, max_size=6), max_size=4))
    assert contradiction([tags for tags, _ in rows], scheme) is None


@given(flat(8, TYPES))
def test_order_of_spans_does_not_matter(expected):
    tags = tags_from_spans(8, reversed(expected), "iob1")
    assert spans_from_tags(tags, "iob1")[0] == expected


@each(("name", "scheme"), [("BIO", "iob2"), ("BIOES", "iobes"), ("IOB-1", "iob1")])
def test_schemes_by_their_other_names(name, scheme):
    assert scheme_named(name) == scheme


@each("name", ["iob", "", "xyz"])
def test_an_unknown_scheme_is_refused(name):
    with pytest.raises(SettingsError, match="iob2"):
        scheme_named(name)


def test_long_tags_are_read_and_not_kept() -> None:
    """The attack: a file of long tags, which would stay in memory when it is closed."""
    kept = tagging._parsed.cache_info().currsize, tagging._step.cache_info().currsize
    tags = [f"{letter}-{'x' * 1000}{n}" for n in range(50) for letter in "BI"]
    assert parse_tag(tags[0]) == ("B", tags[0][2:])
    spans, malformed = spans_from_tags(tags, "iob2")
    assert [span[:2] for span in spans] == [(2 * n, 2 * n + 2) for n in range(50)] and not malformed
    assert kept == (tagging._parsed.cache_info().currsize, tagging._step.cache_info().currsize)
