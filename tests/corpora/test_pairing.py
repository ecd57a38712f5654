"""Documents by the pair that they state: whole bags at one site, and text held apart."""

from __future__ import annotations

import random

import pytest

from cases import each
from confide.corpora.dealing import apart, deal_pairs, group_by_pair, pairs_of, partition
from confide.errors import DataError
from confide.text.document import Document, Entity, pair_attributes


def sentence(number, head, tail, *, concepts=True, file=""):
    text = f"{head} meets {tail}"
    known = ((f"C:{head.lower()}",), (f"C:{tail.lower()}",)) if concepts else ((), ())
    entities = (
        Entity("h", "A", ((0, len(head)),), concepts=known[0]),
        Entity("t", "B", ((len(text) - len(tail), len(text)),), concepts=known[1]),
    )
    attributes = pair_attributes([("h", "t")]) + ((("file", file),) if file else ())
    return Document(f"d{number}", text, entities, attributes=attributes)


def corpus(pairs, each, seed=0):
    made = [sentence(n, f"a{n % pairs}", f"b{n % pairs}") for n in range(pairs * each)]
    random.Random(seed).shuffle(made)
    return made


def test_a_pair_has_a_direction_and_an_identity() -> None:
    documents = [
        sentence(1, "Ann", "Bob"),
        sentence(2, "ANN", "bob"),
        sentence(3, "Bob", "Ann"),
        sentence(4, "ann", "bob", concepts=False),
    ]
    one, two, turned, bare = pairs_of(documents)
    assert one == two == ("C:ann", "C:bob")
    assert turned == ("C:bob", "C:ann")
    assert bare == ("ann", "bob")
    assert len(set(pairs_of(documents, "letters"))) == 2


def test_documents_of_several_pairs_or_none_are_like_no_other() -> None:
    one = sentence(1, "Ann", "Bob")
    several = Document(
        "d2", one.text, one.entities, attributes=pair_attributes([("h", "t"), ("t", "h")])
    )
    silent = Document("d3", one.text, one.entities)
    assert [len(group) for group in group_by_pair([one, several, silent, one, several])] == [
        2,
        1,
        1,
        1,
    ]


@each("sites", [1, 3, 7])
def test_every_pair_is_at_one_site_and_nothing_is_lost(sites: int) -> None:
    documents = corpus(20, 5)
    dealt = deal_pairs(documents, sites, seed=3)
    assert dealt == partition(documents, sites, by="pair", seed=3)
    at = [set(pairs_of(share)) for share in dealt.values()]
    assert sum(map(len, at)) == len(set.union(*at)) == 20
    assert max(map(len, at)) - min(map(len, at)) <= 1
    assert sorted(d.id for share in dealt.values() for d in share) == sorted(
        d.id for d in documents
    )
    places = {d.id: n for n, d in enumerate(documents)}
    assert all([places[d.id] for d in s] == sorted(places[d.id] for d in s) for s in dealt.values())


def test_fewer_pairs_than_sites() -> None:
    documents = corpus(2, 5)
    with pytest.raises(DataError, match="fewer pairs"):
        deal_pairs(documents, 3)
    dealt = deal_pairs(documents, 3, everybody=False)
    assert sorted(map(len, dealt.values())) == [0, 5, 5]


def parts(train, test, dev=()):
    return {"train": list(train), "dev": list(dev), "test": list(test)}


def test_training_documents_of_held_out_files_are_left_out() -> None:
    train = [sentence(n, f"a{n}", "b", file=f"f{n % 4}") for n in range(12)]
    one = parts(train, [sentence(20, "x", "y", file="f1")], [sentence(21, "x", "z", file="f2")])
    other = parts([sentence(30, "q", "r", file="f1"), sentence(31, "q", "r")], [])
    (first, second), left_out = apart([one, other], "file")
    assert {dict(d.attributes)["file"] for d in first["train"]} == {"f0", "f3"}
    assert [d.id for d in second["train"]] == ["d31"]
    assert left_out == 7
    assert first["test"] == one["test"] and first["dev"] == one["dev"]


def test_training_documents_of_held_out_pairs_are_left_out() -> None:
    train = [sentence(n, f"a{n % 3}", "b") for n in range(9)]
    ((kept,), left_out) = apart(
        [parts(train, [sentence(20, "a1", "b"), sentence(21, "b", "a2")])], "pair"
    )
    assert left_out == 3
    assert set(pairs_of(kept["train"])) == {("C:a0", "C:b"), ("C:a2", "C:b")}


def test_documents_without_the_attribute_share_nothing() -> None:
    train = [sentence(1, "a", "b"), sentence(2, "c", "d", file="f1")]
    ((kept,), left_out) = apart([parts(train, [sentence(20, "x", "y")])], "file")
    assert (kept["train"], left_out) == (train, 0)


def test_apart_by_nothing_keeps_everything_and_by_what_nobody_has_is_refused() -> None:
    one = parts([sentence(1, "a", "b")], [sentence(2, "a", "b")])
    assert apart([one], "") == ([one], 0)
    with pytest.raises(DataError, match="no document has an attribute 'flie'"):
        apart([one], "flie")
