"""How sites agree on a bag model and on its words, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import FederationError, GuardError, QuorumError
from confide.federation.guards import Guards, check_reply
from confide.federation.keys import key_check
from confide.kinds.bags.site import COUNT_BAGS, BagsCounted, CountBags, triple_digest
from confide.kinds.relations.batches import NO_RELATION
from confide.text.document import Document
from confide.training.vocabulary import keyed_digest, normalise
from contract.bags import bag_documents, tiny_bags, write_bags
from contract.corpus import KEY, tiny
from methods.relation_runs import Seen, started

SITES = {"site-1": bag_documents("site-1", "train", 20), "site-2": bag_documents("b", "train", 9)}


def begun(folder: Path, *overrides: str, sites: Any = None, **tree: Any) -> tuple[Any, Any, Seen]:
    tables = write_bags(folder / "data", sites or SITES)
    for table in tables:
        table |= tree.get(table["name"], {})
    return started(folder, tiny(folder, "method=fedavg-bags", *overrides, site=tables))


def test_words_are_those_of_all_sites_most_frequent_first(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path, "vocabulary.normalise=lower-digits")
    state = method.start(federation)
    counts: Counter[str] = Counter()
    for documents in SITES.values():
        for one in documents:
            counts.update(normalise(token, "lower-digits") for token in one.text.split())
    marks = {word: keyed_digest(KEY, "word", word) for word in counts}
    expected = sorted(counts, key=lambda word: (-counts[word], marks[word]))
    assert [bytes(row) for row in state.form.word_digests_V16] == [marks[word] for word in expected]
    reply = engine.replies["count_bags", "site-1"]
    assert [bytes(row) for row in reply.word_digests_W16] == sorted(
        {keyed_digest(KEY, "word", token) for one in SITES["site-1"] for token in one.text.split()}
    )
    site_model = state.form.at(engine.site("site-1"))
    pairs = {
        (one.entities[0].concepts, one.entities[1].concepts, one.relations[:1] and 1)
        for one in SITES["site-1"]
    }
    assert engine.replies["take", "site-1"].size == site_model.size == 20
    assert len(site_model.looked("train").groups) == len(pairs)
    assert state.form.relations == [NO_RELATION, "causes", "eases"]
    assert state.form.pairs == [("Drug", "Pain")]
    assert state.form.sizes["filters"] == 12
    assert state.idle == []


def test_rare_words_and_words_of_few_sites_are_left_out(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path, "vocabulary.min_count=4", "vocabulary.min_sites=2")
    state = method.start(federation)
    replies = [engine.replies["count_bags", site] for site in SITES]
    counts: Counter[bytes] = Counter()
    owners: Counter[bytes] = Counter()
    for reply in replies:
        for mark, count in zip(reply.word_digests_W16, reply.word_counts_W, strict=True):
            counts[bytes(mark)] += int(count)
            owners[bytes(mark)] += 1
    expected = {mark for mark, count in counts.items() if count >= 4 and owners[mark] == 2}
    assert {bytes(row) for row in state.form.word_digests_V16} == expected
    assert 0 < len(expected) < len(counts)


def test_a_site_holds_its_rare_words_back(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path)
    engine.site("site-1").guards = Guards(min_token_count=5)
    method.start(federation)
    assert engine.replies["count_bags", "site-1"].word_counts_W.min() >= 5
    assert engine.replies["count_bags", "site-2"].word_counts_W.min() < 5


def test_a_site_with_fewer_sentences_than_its_guard_wants_refuses(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path)
    engine.site("site-2").guards = Guards(min_sentences=10)
    with pytest.raises(QuorumError, match=r"site-2, step check_key.*min_sentences"):
        method.start(federation)


def test_a_run_without_a_relation_is_refused(tmp_path: Path) -> None:
    bare = {name: [replace(one, relations=()) for one in own] for name, own in SITES.items()}
    with pytest.raises(Exception, match="relation"):
        method, federation, _ = begun(tmp_path, sites=bare)
        method.start(federation)


def test_an_encoder_reads_without_words(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    tables = write_bags(tmp_path / "data", SITES)
    settings = tiny(tmp_path, "method=fedavg-bags", "bags.reader=encoder", site=tables)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    reply = engine.replies["count_bags", "site-1"]
    assert (reply.word_digests_W16.shape, len(reply.word_counts_W)) == ((0, 16), 0)
    assert len(state.form.word_digests_V16) == 0
    assert (state.form.reader, state.form.pool, state.form.digest) == (
        "encoder",
        "max",
        reply.encoder,
    )
    extract = method.pair.extractor(state, None, key=None)  # the pieces of a public encoder: no key
    assert extract.relations == tuple(state.form.relations)
    engine.replies.clear()
    engine.change = lambda step, site, turn, given: (
        replace(given, encoder="f" * 64) if (step, site) == ("count_bags", "site-2") else given
    )
    with pytest.raises(FederationError, match=r"not have the server's encoder: site-2 differs"):
        method.start(federation)


def test_sites_must_have_the_same_vectors(tmp_path: Path) -> None:
    files = {}
    for site in SITES:
        files[site] = tmp_path / f"{site}.txt"
        files[site].write_text(f"aspirin {' '.join(['1'] * 8)}\n{site[-1]} {' '.join(['2'] * 8)}\n")
    own = {site: {"vectors": str(file)} for site, file in files.items()}
    method, federation, _ = begun(tmp_path, **own)
    with pytest.raises(FederationError, match="same file of word vectors"):
        method.start(federation)
    wide = tmp_path / "wide.txt"
    wide.write_text("aspirin 1 2 3\ncodeine 1 2 3\n")
    both = {site: {"vectors": str(wide)} for site in SITES}
    method, federation, _ = begun(tmp_path / "wide", **both)
    with pytest.raises(QuorumError, match="word vectors is not `word_dim`"):
        method.start(federation)


def test_digests_of_triples_are_of_one_run_and_of_one_direction(tmp_path: Path) -> None:
    method, federation, _ = begun(tmp_path)
    state = method.start(federation)
    triples = [
        ("D1", "E1", "eases"), ("E1", "D1", "eases"), ("D1", "E1", "causes"), ("D1E", "1", "eases"),
        ("D1", "E1", NO_RELATION), ('D1", "E1', "", "eases"), ("\ud800", "E1", "eases"),
    ]  # fmt: skip
    marks = {triple_digest(state.form, KEY, triple) for triple in triples}
    marks |= {triple_digest(replace(state.form, nonce="1"), KEY, triples[0])}
    marks |= {triple_digest(state.form, bytes(32), triples[0])}
    assert len(marks) == len(triples) + 2
    assert {len(mark) for mark in marks} == {16}


def test_a_site_reads_its_text_anew_with_another_form(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path)
    form, site = method.start(federation).form, engine.site("site-1")
    first = form.at(site).looked("train")
    assert replace(form).at(site).looked("train") is first
    other = replace(form, nonce="1", check=key_check(KEY, "1")).at(site).looked("train")
    assert other is not first
    assert not np.array_equal(other.digests_G16, first.digests_G16)


def marks(*numbers: int) -> np.ndarray:
    return np.array([[number] * 16 for number in numbers], np.uint8).reshape(-1, 16)


GOOD = BagsCounted(
    word_digests_W16=marks(1, 2),
    word_counts_W=np.array([3, 1]),
    encoder="",
    dim=0,
    relations=["a"],
    pairs=[("X", "Y")],
    types=["X"],
)


@each(
    "changes",
    [
        {"word_counts_W": np.array([3])},
        {"word_counts_W": np.array([3, 0])},
        {"word_counts_W": np.array([3.0, 1.0])},
        {"word_digests_W16": marks(1, 1)},
        {"word_digests_W16": marks(1, 2)[:, :5]},
        {"dim": 3},
        {"dim": -1},
        {"encoder": "x" * 65},
        {"relations": [""]},
        {"types": [""]},
    ],
)
def test_counts_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    ask = CountBags("pcnn", "lower", "")
    check_reply(COUNT_BAGS, ask, GOOD)
    with pytest.raises(GuardError):
        check_reply(COUNT_BAGS, ask, replace(GOOD, **changes))


def test_an_encoder_has_a_width_and_no_words() -> None:
    ask = CountBags("encoder", "lower", "minilm")
    none = replace(GOOD, word_digests_W16=marks(), word_counts_W=np.zeros(0, np.int64))
    check_reply(COUNT_BAGS, ask, replace(none, dim=384, encoder="ab"))
    for odd in (none, replace(none, dim=10**6), replace(GOOD, dim=384)):
        with pytest.raises(GuardError):
            check_reply(COUNT_BAGS, ask, odd)


def test_an_empty_document_is_no_bag(tmp_path: Path) -> None:
    sites = {**SITES, "site-3": [Document("e", "no pair here .")]}
    method, federation, _ = begun(tmp_path, sites=sites)
    assert method.start(federation).idle == ["site-3"]
    assert tiny_bags()["bags"] == {"reader": "pcnn"}
