"""Agreeing on a vocabulary and a tag set without showing a word ("remote secure mapping").

Luboshnikov & Makarov 2020, Fig. 3: sites count, hash and send; the server adds up, drops what is
rare, numbers the rest and sends the numbering back; each site can then number its own words.

What leaves a site: keyed digests of its words and characters with their counts; the names of its
entity types; how many training sentences it has.
What never leaves: a word, a character, the key.

Where we differ from the paper. Anyone with a word list can reverse its plain hash; here a
digest is HMAC-SHA-256 under a key that the sites share and the server never sees, cut to 16 bytes.
A token counts only if at least `min_sites` sites and `min_count` occurrences report it. Digests
are sent sorted, so their order says nothing about the text. Ids go by count, ties by digest. The
same ask builds the character vocabulary and the union of tag names, which are not text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import Example, examples_from
from confide.data.batches.vectors import VectorFile, read_vectors
from confide.data.batches.vocabulary import (
    DIGEST_BYTES,
    KeyedVocabulary,
    count_characters,
    count_words,
    digest,
)
from confide.errors import ConfideError, DataError, FederationError, GuardError, KeyFileError
from confide.federation.agreement import Parted, alike
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_mark, check_names
from confide.federation.keys import key_check
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.seeds import derive_seed

Counts = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Digests (W × 16) and how often each occurs (W)."""

MOST_WORDS, MOST_CHARACTERS = 4_000_000, 300_000
"""The most distinct ones at one site: no honest text has more."""
MOST_COMMON = 16_000_000
"""The most words of a common vocabulary."""


@dataclass(frozen=True)
class CheckKey:
    """Prove that you hold the common key, without showing it."""

    nonce: str = carries("a number drawn from the run's seed", rule="varies")


@dataclass(frozen=True)
class KeyChecked:
    """A check value: equal for equal keys, and says nothing else about a key."""

    check: str = carries("HMAC of the nonce under the site's key", rule="open")


@dataclass(frozen=True)
class CountVocabulary:
    """Count the words and characters of the training text."""

    how: str = carries("how words are normalised before counting")
    types: list[str] = carries(
        "the declared entity types; empty if the sites decide", rule="varies"
    )


@dataclass(frozen=True)
class VocabularyCounted:
    """Counts of the training text under keyed digests. W words, C characters."""

    word_digests_W16: NDArray[np.uint8] = carries(
        "keyed digests of the site's words, sorted", most=MOST_WORDS
    )
    word_counts_W: NDArray[np.int64] = carries(
        "how often each occurs in the training text", most=MOST_WORDS, rule="min_token_count"
    )
    character_digests_C16: NDArray[np.uint8] = carries(
        "keyed digests of its characters, sorted", most=MOST_CHARACTERS
    )
    character_counts_C: NDArray[np.int64] = carries(
        "how often each occurs in the training text", most=MOST_CHARACTERS, rule="min_token_count"
    )
    types: list[str] = carries("names of the site's entity types (not text)", rule="open")
    sentences: int = carries("number of training sentences")


@dataclass(frozen=True)
class Agreed:
    """The common vocabulary: row i of a digest table has id i + 2.

    `check` is the HMAC of `nonce` under the common key, so a holder of a key can verify it.
    """

    nonce: str
    check: str
    word_digests_V16: NDArray[np.uint8]
    character_digests_V16: NDArray[np.uint8]
    types: list[str]
    types_by_site: dict[str, list[str]]
    sentences: dict[str, int]


def training_examples(site: Site) -> list[Example]:
    """The site's training sentences, made once."""
    if "train examples" not in site.cache:
        site.cache["train examples"] = examples_from(site.train)[0]
    found: list[Example] = site.cache["train examples"]
    return found


def check_key(site: Site, memory: object, ask: CheckKey, turn: Turn) -> tuple[KeyChecked, object]:
    """Give the check value of the site's key."""
    return KeyChecked(key_check(site.key(), ask.nonce)), memory


def count_vocabulary(
    site: Site, memory: object, ask: CountVocabulary, turn: Turn
) -> tuple[VocabularyCounted, object]:
    """Count the words, characters and types of the training text (Fig. 3, steps 1 and 2).

    Without text all are empty. Raises Refusal where the server reads nothing of a single site.
    """
    if site.member is not None:
        raise Refusal("only-masked")
    key = site.key()
    examples = training_examples(site)
    types = sorted({span[2] for example in examples for span in example.spans})
    if ask.types and not set(types) <= set(ask.types):
        raise Refusal("tag-outside-set")
    tokens = Counter(token for example in examples for token in example.tokens)
    floor = site.guards.min_token_count
    words = digested(key, "word", count_words(tokens, ask.how), floor=floor)  # type: ignore[arg-type]
    characters = digested(key, "character", count_characters(tokens), floor=floor)
    return VocabularyCounted(*words, *characters, types, len(examples)), memory


def check_counted(ask: CountVocabulary, reply: VocabularyCounted) -> None:
    """Raise GuardError if the reply is not counts of distinct digests."""
    for kind, digests, counts in (
        ("word", reply.word_digests_W16, reply.word_counts_W),
        ("character", reply.character_digests_C16, reply.character_counts_C),
    ):
        check_digests(kind, digests)
        if counts.shape != (len(digests),) or counts.dtype != np.int64 or (counts < 1).any():
            raise GuardError(f"the counts of {kind}s are not an int64 above 0 for each digest")
    if reply.sentences < 0:
        raise GuardError("sentences must be at least 0")
    check_names("types", reply.types)
    if ask.types and not set(reply.types) <= set(ask.types):
        raise GuardError("types holds a type that was not declared")


def check_digests(kind: str, digests: NDArray[np.uint8]) -> None:
    """Raise GuardError if these are not sorted, distinct digests of `kind`s."""
    if digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES or digests.dtype != np.uint8:
        raise GuardError(
            f"the digests of {kind}s are not rows of {DIGEST_BYTES} bytes", got=str(digests.shape)
        )
    high_W, low_W = np.ascontiguousarray(digests).view(">u8").reshape(-1, 2).T
    rises_W = (high_W[1:] > high_W[:-1]) | ((high_W[1:] == high_W[:-1]) & (low_W[1:] > low_W[:-1]))
    if not rises_W.all():
        raise GuardError(f"the digests of {kind}s are not sorted or not distinct")


def check_key_checked(ask: object, reply: KeyChecked) -> None:
    """Raise GuardError if the check value is empty or malformed."""
    if not reply.check:
        raise GuardError("check is empty")
    check_mark("check", reply.check)


CHECK_KEY = Step.of(check_key, check=check_key_checked)
COUNT_VOCABULARY = Step.of(count_vocabulary, check=check_counted)


def compare_keys(federation: Federation) -> tuple[str, str, list[str]]:
    """A nonce of this run, its HMAC under the common key, and the sites that hold that key.

    A site whose key is not that of most sites is left out. Raises FederationError if too few share
    a key, and QuorumError if too few have one.
    """
    nonce = format(derive_seed(federation.seed, "key check"), "x")
    checks = federation.ask(CHECK_KEY, CheckKey(nonce), round=0)
    holders = alike(
        federation,
        {site: reply.check for site, reply in checks.items()},
        step=CHECK_KEY,
        why="its key differs from that of the other sites",
        error=_other_keys,
    )
    return nonce, checks[holders[0]].check, holders


def agree(
    federation: Federation, *, how: str, types: Iterable[str], min_count: int, min_sites: int
) -> Agreed:
    """Run both steps, and number what the sites counted (Fig. 3, step 3).

    Raises FederationError if keys differ, and DataError if no site has an entity.
    """
    nonce, check, holders = compare_keys(federation)
    declared = list(types)
    counted = federation.ask(
        COUNT_VOCABULARY, CountVocabulary(how, declared), round=0, sites=holders
    )
    seen = sorted({name for reply in counted.values() for name in reply.types})
    if not seen and not declared:
        raise no_entity()
    words = {site: (r.word_digests_W16, r.word_counts_W) for site, r in counted.items()}
    characters = {
        site: (r.character_digests_C16, r.character_counts_C) for site, r in counted.items()
    }
    sites = min(min_sites, len(federation.sites))
    return Agreed(
        nonce=nonce,
        check=check,
        word_digests_V16=number(words, min_count=min_count, min_sites=sites),
        character_digests_V16=number(characters, min_count=1, min_sites=sites),
        types=declared or seen,
        types_by_site={site: sorted(reply.types) for site, reply in counted.items()},
        sentences={site: reply.sentences for site, reply in counted.items()},
    )


def no_entity() -> DataError:
    """The error for sites of which none has an annotated entity."""
    return DataError(
        "no site has an annotated entity in its training text",
        fix="check the tag maps and formats with `confide data check`",
    )


def vectors_of(file: Path, words: KeyedVocabulary, *, how: str, dim: int) -> VectorFile:
    """The rows of a site's own vector file for common words.

    Raises Refusal if it is unusable, or its vectors have not `dim` numbers.
    """
    try:
        found = read_vectors(file, words, how=how)  # type: ignore[arg-type]
    except (OSError, ConfideError) as error:
        raise Refusal("vectors-missing") from error
    if found.dims != dim:
        raise Refusal("vectors-dimension")
    return found


def number(counted: Mapping[str, Counts], *, min_count: int, min_sites: int) -> NDArray[np.uint8]:
    """The digests in the order of their ids: most frequent first, ties by digest. Shape V × 16."""
    everything = np.concatenate([one_each(digests) for digests, _ in counted.values()])
    distinct, places = np.unique(everything, return_inverse=True)
    occurrences = np.zeros(len(distinct), np.int64)
    np.add.at(occurrences, places, np.concatenate([counts for _, counts in counted.values()]))
    reporters = np.bincount(places, minlength=len(distinct))
    kept = (occurrences >= min_count) & (reporters >= min_sites)
    order = np.lexsort((np.arange(len(distinct)), -occurrences))
    chosen = distinct[order[kept[order]]]
    return chosen.view(np.uint8).reshape(len(chosen), DIGEST_BYTES).copy()


def common_key(key: bytes | None, *, nonce: str, check: str) -> bytes:
    """The key, if it is the one that the sites agreed on: with another, no word would be known.

    Raises KeyFileError if there is no key, or a different one.
    """
    if key is None:
        raise KeyFileError("the words of this model are keyed", fix="name the sites' key file")
    if key_check(key, nonce) != check:
        raise KeyFileError(
            "this is not the key that the sites trained with, so no word would be known",
            fix="name the key file that the sites shared in training",
        )
    return key


def file_check(key: bytes, content_digest: str) -> str:
    """A check value: equal for equal files, and says nothing else about a file."""
    return digest(key, "file", content_digest).hex()


def digested(key: bytes, kind: str, counts: Counter[str], *, floor: int) -> Counts:
    """The sorted digests of what occurs at least `floor` times, and how often each occurs."""
    pairs = sorted(
        (digest(key, kind, text), count) for text, count in counts.items() if count >= floor
    )
    digests = np.frombuffer(b"".join(mark for mark, _ in pairs), np.uint8)
    counted = np.array([count for _, count in pairs], np.int64)
    return digests.reshape(len(pairs), DIGEST_BYTES), counted


def one_each(digests: NDArray[np.uint8]) -> NDArray[np.void]:
    """Each row of 16 bytes as one value, which sorts as its bytes do."""
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").reshape(-1)


def _other_keys(parted: Parted) -> FederationError:
    """The error that names the sites with different keys."""
    one = "the key of {} differs from that of the other sites"
    who = parted.who(one, "these groups hold different keys")
    return FederationError(
        f"the sites do not share one key: {who}",
        fix="give every site the same key file",
    )
