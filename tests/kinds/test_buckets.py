"""A vocabulary by buckets: that of digests up to words that share one, and no digest leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.federation.engines import SequentialEngine
from confide.federation.failures import Failure, Refusal
from confide.federation.guards import Guards
from confide.federation.keys import read_key
from confide.federation.memory import MemoryStore
from confide.federation.messages import decode, encode
from confide.federation.site import Site, SiteHost
from confide.federation.steps import Delivery, Turn
from confide.kinds.agreement import (
    CHARACTER_BITS,
    COUNT_VOCABULARY,
    WORD_BITS,
    CountBuckets,
    CountVocabulary,
    buckets_counted,
    common_buckets,
    count_buckets,
    count_vocabulary,
)
from confide.runs.run import run
from confide.runs.sites import gather
from confide.training.vocabulary import (
    SPECIALS,
    UNK,
    KeyedVocabulary,
    bucket_of,
    bucket_rows,
    keyed_digest,
)
from contract.corpus import tiny
from contract.runs import use_engine

KEY = b"k" * 32


@given(st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=60))
def test_it_is_the_vocabulary_of_digests_up_to_words_that_share_a_bucket(words: list[str]) -> None:
    bits = 8
    counts = Counter(words)
    counts_B = np.zeros(2**bits, np.int64)
    for word, count in counts.items():
        counts_B[bucket_of(keyed_digest(KEY, "word", word), bits)] += count
    rows = common_buckets(counts_B, (counts_B > 0).astype(np.int64), min_count=2, min_sites=1)
    found = KeyedVocabulary(rows, "word", KEY)
    together = Counter(
        {word: counts_B[bucket_of(keyed_digest(KEY, "word", word), bits)] for word in counts}
    )
    ids = dict(zip(counts, found.ids(list(counts)).tolist(), strict=True))
    for word in counts:
        assert (ids[word] == UNK) == (together[word] < 2)
        for other in counts:
            same = bucket_of(keyed_digest(KEY, "word", word), bits) == bucket_of(
                keyed_digest(KEY, "word", other), bits
            )
            if ids[word] != UNK:
                assert (ids[word] == ids[other]) == same
    by_count = sorted(counts_B[counts_B >= 2].tolist(), reverse=True)
    of_row = {ids[word]: together[word] for word in counts if ids[word] != UNK}
    assert [of_row[place + SPECIALS] for place in range(len(rows))] == by_count


def test_words_of_too_few_sites_get_no_row() -> None:
    counts_B, sites_B = np.array([5, 5, 0, 1]), np.array([1, 2, 0, 1])
    rows = common_buckets(counts_B, sites_B, min_count=1, min_sites=2)
    assert rows.tobytes() == bucket_rows(np.array([1]), 2).tobytes()
    assert not len(common_buckets(counts_B, sites_B, min_count=6, min_sites=1))


def test_rare_words_stay_at_the_site() -> None:
    site = Site("s", [], guards=Guards(min_token_count=2))
    object.__setattr__(site, "key", lambda: KEY)
    found = buckets_counted(site, CountBuckets("none", 12, 0), ["once", "twice", "twice"])
    assert found.word_counts_B.sum() == 2 and found.word_sites_B.sum() == 1
    assert not len(found.character_counts_C)


@each(("words", "characters"), [(0, 3), (25, 3), (3, 25), (3, -1)])
def test_absurd_sizes_are_refused(words: int, characters: int) -> None:
    with pytest.raises(Refusal, match="could not read the ask"):
        buckets_counted(Site("s", []), CountBuckets("none", words, characters), [])


def test_a_masked_site_sends_no_digest_whoever_asks(tmp_path: Path) -> None:
    """By its guard, and where sums are secure."""
    ask, name = CountVocabulary("none"), COUNT_VOCABULARY.name
    site = Site("s", [], guards=Guards(masked=True))
    store: Any = MemoryStore(tmp_path, object)
    host = SiteHost(site, {name: COUNT_VOCABULARY}, memory=store, seed=1)
    assert decode(Failure, host.answer(name, 0, encode(ask))).code == "only-masked"
    with pytest.raises(Refusal, match="masked"):
        count_vocabulary(Site("s", [], member=object()), None, ask, Turn(0, "s", name, 1))


class Heard(SequentialEngine):
    """Keeps every byte that a site sends."""

    sent: list[bytes]

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            type(self).sent.append(found.reply)
            yield found


@pytest.mark.parametrize("method", ["fedavg-tagger", "fedavg-bags"])
@pytest.mark.parametrize("sums", ["plain", "masked"])
def test_no_digest_of_a_word_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, sums: str
) -> None:
    """In a plain run they do: so the test can fail."""
    sent: list[bytes] = []
    use_engine(monkeypatch, Heard, sent=sent)
    settings = tiny(tmp_path, f"method={method}", "rounds=1", f"federation.sums={sums}")
    run(settings, out=tmp_path / "run")
    gathered = gather(settings, tmp_path / "again", key_file=None)
    key = read_key(Path(settings.key or ""))
    words = {word for spec in gathered.specs for one in spec.train for word in one.text.split()}
    marks = [keyed_digest(key, "word", word.lower()) for word in words]
    marks += [keyed_digest(key, "word", word) for word in words]
    found = sum(any(mark in data for data in sent) for mark in marks)
    assert (found > 0) == (sums == "plain")


def test_counting_again_gives_the_same(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    spec: Any = gather(settings, tmp_path / "run", key_file=None).specs[0]
    site = Site(spec.name, spec.train, key_file=Path(settings.key or ""))
    ask = CountBuckets("lower", WORD_BITS, CHARACTER_BITS)
    one, _ = count_buckets(site, None, ask, Turn(0, spec.name, "count_buckets", 1))
    two, _ = count_buckets(site, None, ask, Turn(0, spec.name, "count_buckets", 2))
    assert all((getattr(one, name) == getattr(two, name)).all() for name in vars(one))
    assert one.word_counts_B.sum() > one.word_sites_B.sum() > 10
