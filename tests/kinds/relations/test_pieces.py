"""Relation examples as pieces: marks, blinding, windows that never cut an entity, batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError
from confide.kinds.pieces import (
    EncodedRelations,
    Marking,
    encode_relations,
    predict_relation_batches,
    relation_batch,
)
from confide.kinds.relations.batches import RelationExample

CLS, SEP, FIRST = 1, 2, 10_000
MARKS = {FIRST: "<e1>", FIRST + 1: "</e1>", FIRST + 2: "<e2>", FIRST + 3: "</e2>"}
WORDS: list[str] = []


def tokenise(texts: Sequence[str]) -> list[list[int]]:
    """A piece for each word; new words get the next number."""
    rows = []
    for text in texts:
        WORDS.extend(word for word in text.split() if word not in WORDS)
        rows.append([100 + WORDS.index(word) for word in text.split()])
    return rows


def spelled(ids: Sequence[int]) -> str:
    names = {CLS: "[CLS]", SEP: "[SEP]", **MARKS}
    return " ".join(names.get(one) or WORDS[one - 100] for one in ids)


def marking(**changes: Any) -> Marking:
    return Marking(**{"first": FIRST, "before": (CLS,), "after": (SEP,), **changes})


def example(marked: str, *, relation: str = "causes", **changes: Any) -> RelationExample:
    """From a text with [the head] and {the tail}."""
    text, places = "", {}
    for letter in marked:
        if letter in "[]{}":
            places[letter] = len(text)
        else:
            text += letter
    fields: dict[str, Any] = {
        "id": "1",
        "text": text,
        "head": ((places["["], places["]"]),),
        "tail": ((places["{"], places["}"]),),
        "head_type": "Drug",
        "tail_type": "Disease",
        "relation": relation,
    }
    return RelationExample(**{**fields, **changes})


def encoded(*examples: RelationExample, **changes: Any) -> EncodedRelations:
    return encode_relations(
        examples, relations=("none", "causes"), marking=marking(**changes), tokenise=tokenise
    )


def shown(one: RelationExample, **changes: Any) -> str:
    return spelled(encoded(one, **changes).ids_N.tolist())


def test_entities_are_wrapped_and_blinded() -> None:
    one = example("most [acid pills] cause {a rash} here")
    assert shown(one) == "[CLS] most <e1> Drug </e1> cause <e2> Disease </e2> here [SEP]"
    assert (
        shown(one, blind=False)
        == "[CLS] most <e1> acid pills </e1> cause <e2> a rash </e2> here [SEP]"
    )


def test_an_entity_that_is_a_pair_with_itself_is_blinded_once() -> None:
    one = example("no [{bad rash}] here", tail_type="Drug")
    assert shown(one) == "[CLS] no <e1> <e2> Drug </e2> </e1> here [SEP]"
    other = example("no [{bad rash}] here")
    assert shown(other) == "[CLS] no <e1> <e2> bad rash </e2> </e1> here [SEP]"


def test_the_tail_may_come_first_and_touch_the_head() -> None:
    assert shown(example("{rash}[pill]")) == "[CLS] <e2> Disease </e2> <e1> Drug </e1> [SEP]"


@each(
    ("marked", "pieces"),
    [
        ("a [b {c} d] e", "a <e1> b <e2> c </e2> d </e1> e"),
        ("a {b [c] d} e", "a <e2> b <e1> c </e1> d </e2> e"),
        ("a [{b} c] d", "a <e1> <e2> b </e2> c </e1> d"),
        ("a [b {c}] d", "a <e1> b <e2> c </e2> </e1> d"),
        ("a [{b}] c", "a <e1> <e2> b </e2> </e1> c"),
        ("a [b {c] d} e", "a <e1> b <e2> c </e1> d </e2> e"),
    ],
)
def test_entities_that_overlap_are_wrapped_one_in_the_other(marked: str, pieces: str) -> None:
    assert shown(example(marked)) == f"[CLS] {pieces} [SEP]"


def test_of_fragments_all_is_marked_unless_the_other_entity_is_inside() -> None:
    one = example("[left] and {right} atrium x", head=((0, 4), (15, 21)))
    assert shown(one, blind=False) == ("[CLS] <e1> left </e1> and <e2> right </e2> atrium x [SEP]")
    one = example("[left] upper lobe of {x}", head=((0, 4), (11, 15)))
    assert shown(one, blind=False) == "[CLS] <e1> left upper lobe </e1> of <e2> x </e2> [SEP]"


def test_types_have_marks_of_their_own() -> None:
    form = marking(types=("Disease", "Drug"))
    assert form.count == 8
    assert marking().count == 4
    assert form.around("Disease", tail=False) == (FIRST, FIRST + 1)
    assert form.around("Drug", tail=True) == (FIRST + 6, FIRST + 7)
    found = encoded(example("[a] {b}"), types=("Disease", "Drug"))
    assert found.ids_N[[1, 3, 4, 6]].tolist() == [FIRST + n for n in (4, 5, 2, 3)]
    with pytest.raises(DataError, match="no mark for"):
        encoded(example("[a] {b}"), types=("Gene",))


def test_ranges_are_those_of_the_entities_without_marks() -> None:
    found = encoded(example("most [acid pills] cause {a bad rash} here"), blind=False)
    ids = found.ids_N.tolist()
    assert spelled(ids[slice(*found.heads_S2[0])]) == "acid pills"
    assert spelled(ids[slice(*found.tails_S2[0])]) == "a bad rash"
    assert found.relations_S.tolist() == [1]
    assert found.lengths_S.tolist() == [len(ids)]


def test_a_long_text_is_cut_around_the_entities_alike() -> None:
    words = [f"w{n}" for n in range(60)]
    words[30], words[33] = "[aa]", "{bb}"
    kept = shown(example(" ".join(words)), longest=18)
    assert kept == (
        "[CLS] w26 w27 w28 w29 <e1> Drug </e1> w31 w32 <e2> Disease </e2> w34 w35 w36 w37 [SEP]"
    )
    words[30], words[1], words[33], words[2] = "w30", "[aa]", "w33", "{bb}"
    kept = shown(example(" ".join(words)), longest=18)
    assert kept.startswith("[CLS] w0 <e1> Drug </e1> <e2> Disease </e2> w3")
    assert len(kept.split()) == 18


def test_entities_far_apart_lose_the_middle() -> None:
    words = [f"w{n}" for n in range(60)]
    words[5], words[50] = "[aa]", "{bb}"
    found = encoded(example(" ".join(words)), longest=18)
    assert spelled(found.ids_N.tolist()) == (
        "[CLS] w3 w4 w2 <e1>".replace("w3 w4 w2", "w2 w3 w4")
        + " Drug </e1> w6 w7 w8 w48 w49 <e2> Disease </e2> w51 w52 [SEP]"
    )


def test_only_an_entity_longer_than_half_a_window_is_cut() -> None:
    long = " ".join(f"h{n}" for n in range(40))
    found = encoded(example(f"x [{long}] y {{b}} z"), longest=22, blind=False)
    assert found.lengths_S.tolist() == [18]
    ids = found.ids_N.tolist()
    assert spelled(ids[slice(*found.heads_S2[0])]) == "h0 h1 h2 h3 h36 h37 h38 h39"
    assert spelled(ids[slice(*found.tails_S2[0])]) == "b"
    found = encoded(example(f"x [{long} {{b}} {long}] z"), longest=22, blind=False)
    assert spelled(found.ids_N[slice(*found.tails_S2[0])].tolist()) == "b"


WORD = st.sampled_from(["a", "bb", "ccc"])


@given(st.lists(WORD, min_size=2, max_size=80), st.data(), st.integers(18, 40), st.booleans())
def test_whatever_the_text_both_entities_stay(
    words: list[str], data: st.DataObject, longest: int, blind: bool
) -> None:
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()

    def mention() -> tuple[int, int]:
        first = data.draw(st.integers(0, len(words) - 1))
        last = data.draw(st.integers(first, len(words) - 1))
        return starts[first], starts[last + 1] - 1

    text = " ".join(words)
    head, tail = mention(), mention()
    one = example("[a] {b}", text=text, head=(head,), tail=(tail,))
    found = encoded(one, longest=longest, blind=blind)
    ids = found.ids_N.tolist()
    assert len(ids) <= longest
    assert sorted(one for one in ids if one >= FIRST) == list(MARKS)
    whole = len(text.split()) + 6
    for span, (start, end), type in (
        (head, found.heads_S2[0], "Drug"),
        (tail, found.tails_S2[0], "Disease"),
    ):
        assert ids[start - 1] in MARKS
        inside = [WORDS[n - 100] for n in ids[start:end] if n < FIRST]
        apart = head[1] <= tail[0] or tail[1] <= head[0]
        if blind and apart:
            assert inside == [type]
        elif whole <= longest:
            assert inside == text[slice(*span)].split()


def test_a_batch_is_padded_and_knows_where_entities_open() -> None:
    found = encoded(example("[a] {b}"), example("x y [a] z {b}", relation="none"))
    batch = relation_batch(found, np.array([0, 1]))
    assert batch.ids_BP.shape == (2, 11)
    assert batch.mask_BP is not None
    assert batch.mask_BP.sum(1).tolist() == [8, 11]
    assert batch.ids_BP[0, 8:].tolist() == [0, 0, 0]
    for row in range(2):
        opened = [MARKS[int(batch.ids_BP[row, place])] for place in batch.openings_B2[row]]
        assert opened == ["<e1>", "<e2>"]
        assert spelled(batch.ids_BP[row][batch.head_BP[row]].tolist()) == "Drug"
        assert spelled(batch.ids_BP[row][batch.tail_BP[row]].tolist()) == "Disease"
    assert batch.relations_B.tolist() == [1, 0]
    assert relation_batch(found, np.array([1])).mask_BP is None


def test_some_examples_are_what_they_were_among_all() -> None:
    texts = ("[drug] helps {pain} a lot", "[a] {b}", "so {pain} needs [drug]")
    found = encoded(*(example(text) for text in texts))
    some = found.only(np.array([2, 0]))
    assert len(some) == 2
    for place, row in enumerate((2, 0)):
        ours = relation_batch(some, np.array([place]))
        whole = relation_batch(found, np.array([row]))
        for name in ("ids_BP", "head_BP", "tail_BP", "openings_B2", "relations_B"):
            assert getattr(ours, name).tolist() == getattr(whole, name).tolist()


def test_every_example_is_in_one_batch() -> None:
    many = [example("[a] " + "x " * (n % 7) + "{b}") for n in range(23)]
    found = encoded(*many)
    batches = list(predict_relation_batches(found, pieces_per_batch=40))
    assert sorted(row for batch in batches for row in batch.rows_B.tolist()) == list(range(23))
    assert all(batch.ids_BP.numel() <= 40 for batch in batches)


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(DataError, match="outside the declared set"):
        encoded(example("[a] {b}", relation="cures"))
    with pytest.raises(DataError, match="too small for two entities"):
        encoded(example("[a] {b}"), longest=17)
    assert len(encoded()) == 0
