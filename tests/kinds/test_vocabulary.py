"""The private vocabulary: the oracle is a plain Counter over all sites' text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import FederationError, GuardError, QuorumError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Federation
from confide.federation.guards import Guards
from confide.federation.keys import key_check, new_key
from confide.federation.ledger import Ledger
from confide.federation.site import Site
from confide.federation.steps import Turn
from confide.kinds.agreement import (
    CHECK_KEY,
    COUNT_VOCABULARY,
    AgreedWords,
    CountVocabulary,
    KeyChecked,
    agree_on_words,
    check_key_checked,
    count_vocabulary,
    file_check,
    number_words,
)
from confide.kinds.protocol import Kept
from confide.kinds.tagger.site import TaggerSpec
from confide.settings.tables import VocabularyTable
from confide.text.document import Document, Entity
from confide.training.vocabulary import DIGEST_BYTES, KeyedVocabulary, keyed_digest, normalise

KEY = bytes(range(32))


def note(text: str, *entities: tuple[str, str]) -> Document:
    """A document; entities are (surface, type)."""
    marks = []
    for count, (surface, type_) in enumerate(entities):
        start = text.index(surface)
        marks.append(Entity(f"T{count}", type_, ((start, start + len(surface)),)))
    return Document("d", text, tuple(marks))


TEXTS = {
    "north": [note("Aspirin helps and aspirin hurts .", ("Aspirin", "Drug")), note("No pain .")],
    "south": [note("pain and pain and rash 12 .", ("rash", "Effect"), ("pain", "Effect"))],
    "west": [note("Aspirin , 37 mg .", ("Aspirin", "Drug"))],
}


def federation(
    folder: Path, texts: dict[str, list[Document]], *, at_least: int = 0, **spec: object
) -> Federation:
    key = folder / "shared.key"
    if not key.exists():
        new_key(key, KEY)
    specs = [
        Site(name, train, folder / name, **{"key_file": key, **spec})  # type: ignore[arg-type]
        for name, train in texts.items()
    ]
    steps = {step.name: step for step in (CHECK_KEY, COUNT_VOCABULARY)}
    engine = SequentialEngine(specs, Hosting(steps, Kept[TaggerSpec], 1))
    return Federation(engine, seed=1, ledger=Ledger(), at_least=at_least)


def agreed(sites: Federation, how: str = "lower-digits", **floors: int) -> AgreedWords:
    own = VocabularyTable(normalise=how, **floors)  # type: ignore[arg-type]
    found, holders = agree_on_words(sites, own, noised=False)
    assert sorted(holders) == sorted(sites.sites)
    return found


def counted(texts: dict[str, list[Document]], how: str = "lower-digits") -> dict[str, Counter[str]]:
    """What a place that holds all text would count, by splitting at spaces."""
    return {
        site: Counter(normalise(token, how) for d in train for token in d.text.split())  # type: ignore[arg-type]
        for site, train in texts.items()
    }


def in_order(words: Counter[str], kind: str = "word") -> list[bytes]:
    """Digests by count, ties by digest: what numbering must come to."""
    return sorted(
        (keyed_digest(KEY, kind, w) for w in words), key=lambda d: (-by_digest(words)[d], d)
    )


def by_digest(words: Counter[str], kind: str = "word") -> dict[bytes, int]:
    return {keyed_digest(KEY, kind, word): count for word, count in words.items()}


def rows(digests_V16: np.ndarray) -> list[bytes]:
    return [row.tobytes() for row in digests_V16]


@each("how", ["none", "lower", "lower-digits"])
def test_words_are_numbered_as_a_plain_count_would(tmp_path: Path, how: str) -> None:
    found = agreed(federation(tmp_path, TEXTS), how=how)
    total = sum(counted(TEXTS, how).values(), Counter())
    assert rows(found.word_digests_V16) == in_order(total)


def test_characters_are_numbered_too_as_written(tmp_path: Path) -> None:
    found = agreed(federation(tmp_path, TEXTS))
    total = Counter("".join(d.text.replace(" ", "") for train in TEXTS.values() for d in train))
    known = by_digest(total, "character")
    assert rows(found.character_digests_V16) == sorted(known, key=lambda d: (-known[d], d))
    assert keyed_digest(KEY, "character", "A") in known  # characters are never lower-cased


def test_who_holds_the_key_can_number_a_word_and_nobody_else(tmp_path: Path) -> None:
    found = agreed(federation(tmp_path, TEXTS))
    words = KeyedVocabulary(found.word_digests_V16, "word", KEY)
    total = sum(counted(TEXTS).values(), Counter())
    most = [word for word, count in total.items() if count == max(total.values())]
    assert 2 in words.ids(most)
    assert sorted(words.ids(list(total))) == list(range(2, len(total) + 2))
    assert words.ids(["unseen"]).tolist() == [1]
    other = KeyedVocabulary(found.word_digests_V16, "word", bytes(32))
    assert set(other.ids(list(total)).tolist()) == {1}


def test_the_check_value_goes_with_the_vocabulary(tmp_path: Path) -> None:
    found = agreed(federation(tmp_path, TEXTS))
    assert found.check == key_check(KEY, found.nonce)


@each(("min_count", "min_sites"), [(2, 1), (1, 2), (3, 1), (2, 2), (1, 3)])
def test_floors_keep_rare_words_out(tmp_path: Path, min_count: int, min_sites: int) -> None:
    found = agreed(federation(tmp_path, TEXTS), min_count=min_count, min_sites=min_sites)
    single = counted(TEXTS)
    total = sum(single.values(), Counter())
    kept = {
        word
        for word, count in total.items()
        if count >= min_count and sum(word in counts for counts in single.values()) >= min_sites
    }
    assert kept != set(total)
    assert set(rows(found.word_digests_V16)) == {keyed_digest(KEY, "word", word) for word in kept}


def test_the_floor_of_sites_does_not_sink_when_sites_fail(tmp_path: Path) -> None:
    """Two of three sites are gone; what one site reports is no word of two sites."""
    sites = federation(tmp_path, TEXTS, at_least=1)
    for name in ("south", "west"):
        sites._engine._hosts[name].site.key_file = None  # type: ignore[attr-defined]
    found, holders = agree_on_words(sites, VocabularyTable(min_sites=2), noised=False)
    assert holders == ["north"]
    assert len(found.word_digests_V16) == 0
    alone = agreed(federation(tmp_path, {"north": TEXTS["north"]}), min_sites=2)
    assert len(alone.word_digests_V16) > 0  # a federation of one has no other site to ask for


def test_who_has_another_key_is_named(tmp_path: Path) -> None:
    sites = federation(tmp_path, TEXTS)
    odd = new_key(tmp_path / "odd.key")
    sites._engine._hosts["west"].site.key_file = odd  # type: ignore[attr-defined]
    with pytest.raises(FederationError, match="the key of west differs from that of the other"):
        agreed(sites)


def test_two_sites_with_two_keys_are_both_named(tmp_path: Path) -> None:
    sites = federation(tmp_path, {name: TEXTS[name] for name in ("north", "south")})
    odd = new_key(tmp_path / "odd.key")
    sites._engine._hosts["south"].site.key_file = odd  # type: ignore[attr-defined]
    with pytest.raises(FederationError, match=r"different keys: north \| south"):
        agreed(sites)


def test_a_missing_key_is_told_by_the_site(tmp_path: Path) -> None:
    sites = federation(tmp_path, TEXTS)
    sites._engine._hosts["west"].site.key_file = None  # type: ignore[attr-defined]
    sites._engine._hosts["south"].site.key_file = tmp_path / "nowhere"  # type: ignore[attr-defined]
    with pytest.raises(QuorumError, match=r"got 1 .*south.*no key.*west.*no key"):
        agreed(sites)


# --- at the site -----------------------------------------------------------------------------


def reply(train: list[Document], folder: Path, **guards: int) -> object:
    key = folder / "shared.key"
    if not key.exists():
        new_key(key, KEY)
    site = Site("north", train, key_file=key, guards=Guards(**guards))
    turn = Turn(0, "north", "count_vocabulary", 1)
    found, memory = count_vocabulary(site, None, CountVocabulary("lower"), turn)
    assert memory is None
    return found


def test_digests_leave_sorted_so_that_their_order_says_nothing(tmp_path: Path) -> None:
    one = reply(TEXTS["north"], tmp_path)
    other = reply(TEXTS["north"][::-1], tmp_path)
    digests = rows(one.word_digests_W16)  # type: ignore[attr-defined]
    assert digests == sorted(digests)
    assert len(digests[0]) == DIGEST_BYTES
    assert np.array_equal(one.word_digests_W16, other.word_digests_W16)  # type: ignore[attr-defined]
    assert np.array_equal(one.word_counts_W, other.word_counts_W)  # type: ignore[attr-defined]


def test_a_sites_own_floor_keeps_its_rare_words_at_home(tmp_path: Path) -> None:
    found = reply(TEXTS["north"], tmp_path, min_token_count=2)
    kept = {word for word, count in counted(TEXTS, "lower")["north"].items() if count >= 2}
    assert kept
    assert set(rows(found.word_digests_W16)) == {keyed_digest(KEY, "word", word) for word in kept}  # type: ignore[attr-defined]


@each("train", [[], [Document("d", " \n")]])
def test_a_site_without_text_has_no_words_and_takes_part(
    tmp_path: Path, train: list[Document]
) -> None:
    found = agreed(federation(tmp_path, {**TEXTS, "east": train}))
    plain = agreed(federation(tmp_path / "plain", TEXTS))
    assert np.array_equal(found.word_digests_V16, plain.word_digests_V16)


def test_files_are_compared_without_being_shown() -> None:
    assert file_check(KEY, "ab") == file_check(KEY, "ab") != file_check(KEY, "ac")
    assert file_check(KEY, "ab") != file_check(bytes(32), "ab")


# --- numbering alone ---------------------------------------------------------------------------

MARK = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
REPORT = st.dictionaries(st.sampled_from([bytes([n]) * 16 for n in range(8)]) | MARK,
                         st.integers(1, 3), max_size=10)  # fmt: skip


@given(st.lists(REPORT, min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 3))
def test_numbering_is_a_count_with_two_floors(
    reports: list[dict[bytes, int]], min_count: int, min_sites: int
) -> None:
    def table(report: dict[bytes, int]) -> tuple[np.ndarray, np.ndarray]:
        marks = np.frombuffer(b"".join(sorted(report)), np.uint8).reshape(-1, DIGEST_BYTES)
        return marks, np.array([report[mark] for mark in sorted(report)], np.int64)

    total: Counter[bytes] = Counter()
    sites: Counter[bytes] = Counter()
    for report in reports:
        total.update(report)
        sites.update(report.keys())
    expected = [mark for mark in total if total[mark] >= min_count and sites[mark] >= min_sites]
    expected.sort(key=lambda mark: (-total[mark], mark))
    tables = {f"site-{n}": table(report) for n, report in enumerate(reports)}
    assert rows(number_words(tables, min_count=min_count, min_sites=min_sites)) == expected
    backwards = dict(reversed(tables.items()))
    assert rows(number_words(backwards, min_count=min_count, min_sites=min_sites)) == expected


@each("check", ["", "aspirin", "0a\n", "0" * 65])
def test_a_check_value_of_the_key_that_is_no_digest_is_refused(check: str) -> None:
    with pytest.raises(GuardError, match="check"):
        check_key_checked(None, KeyChecked(check))
