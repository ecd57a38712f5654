"""Agreement of sites: a vocabulary and entity types without showing a word, features, tuning.

Words are agreed on by "remote secure mapping".

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from confide.errors import (
    ConfideError,
    DataError,
    FederationError,
    GuardError,
    KeyFileError,
    SettingsError,
)
from confide.federation.failures import Refusal
from confide.federation.federation import Federation, Parted, alike
from confide.federation.guards import check_mark
from confide.federation.keys import key_check
from confide.federation.messages import Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.files import cache_folder
from confide.kinds.protocol import Agreed, shown
from confide.seeds import derive_seed
from confide.settings import Settings as RunSettings
from confide.settings.tables import VocabularyTable
from confide.text.document import Document
from confide.text.published.catalogue import locate
from confide.training import vocabulary
from confide.training.batches import Encoded, Example, examples_from, with_context
from confide.training.context import contextual
from confide.training.encoder import FrozenEncoder, Tuning, load_encoder
from confide.training.vocabulary import keyed_digest

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


NOTHING_V16 = np.zeros((0, vocabulary.DIGEST_BYTES), np.uint8)
"""No digest."""


@dataclass(frozen=True)
class AgreedWords:
    """The common vocabulary, keyed or clear: row i of a table has id i + 2.

    `check` is the HMAC of `nonce` under the common key, so a holder of a key can verify it.
    """

    nonce: str = ""
    check: str = ""
    word_digests_V16: NDArray[np.uint8] = field(default_factory=lambda: NOTHING_V16)
    character_digests_V16: NDArray[np.uint8] = field(default_factory=lambda: NOTHING_V16)
    words: Sequence[str] = ()
    characters: Sequence[str] = ()


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
    """Count the words and characters of the training text (Fig. 3, steps 1 and 2).

    Without text all are empty. Raises Refusal where the server reads nothing of a single site.
    """
    if site.member is not None:
        raise Refusal("only-masked")
    key = site.key()
    examples = training_examples(site)
    tokens = Counter(token for example in examples for token in example.tokens)
    floor = site.guards.min_token_count
    words = digested(key, "word", vocabulary.count_words(tokens, ask.how), floor=floor)  # type: ignore[arg-type]
    characters = digested(key, "character", vocabulary.count_characters(tokens), floor=floor)
    return VocabularyCounted(*words, *characters), memory


def check_counted(ask: CountVocabulary, reply: VocabularyCounted) -> None:
    """Raise GuardError if the reply is not counts of distinct digests."""
    for kind, digests, counts in (
        ("word", reply.word_digests_W16, reply.word_counts_W),
        ("character", reply.character_digests_C16, reply.character_counts_C),
    ):
        check_digests(kind, digests)
        if counts.shape != (len(digests),) or counts.dtype != np.int64 or (counts < 1).any():
            raise GuardError(f"the counts of {kind}s are not an int64 above 0 for each digest")


def check_digests(kind: str, digests: NDArray[np.uint8]) -> None:
    """Raise GuardError if these are not sorted, distinct digests of `kind`s."""
    if (
        digests.ndim != 2
        or digests.shape[1] != vocabulary.DIGEST_BYTES
        or digests.dtype != np.uint8
    ):
        raise GuardError(
            f"the digests of {kind}s are not rows of {vocabulary.DIGEST_BYTES} bytes",
            got=str(digests.shape),
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


def agree_on_words(
    federation: Federation, own: VocabularyTable, *, noised: bool
) -> tuple[AgreedWords, list[str]]:
    """The common vocabulary (Fig. 3, step 3), and the sites that hold the common key.

    Where no site's digests may be seen, it is one of buckets; under noise it is empty: counting
    words would spend what noise is to save. Raises FederationError if keys differ.
    """
    nonce, check, holders = compare_keys(federation)
    if noised:
        return AgreedWords(nonce, check), holders
    sites = min(own.min_sites, len(federation.sites))
    if federation.summing is not None:
        counted = federation.sum(COUNT_BUCKETS, asked_of_buckets(own), round=0, sites=holders)
        words_V16 = common_buckets(
            counted.word_counts_B, counted.word_sites_B, min_count=own.min_count, min_sites=sites
        )
        characters_V16 = common_buckets(
            counted.character_counts_C, counted.character_sites_C, min_count=1, min_sites=sites
        )
        return AgreedWords(nonce, check, words_V16, characters_V16), holders
    replies = federation.ask(
        COUNT_VOCABULARY, CountVocabulary(own.normalise), round=0, sites=holders
    )
    words = {site: (r.word_digests_W16, r.word_counts_W) for site, r in replies.items()}
    characters = {
        site: (r.character_digests_C16, r.character_counts_C) for site, r in replies.items()
    }
    words_V16 = number_words(words, min_count=own.min_count, min_sites=sites)
    characters_V16 = number_words(characters, min_count=1, min_sites=sites)
    return AgreedWords(nonce, check, words_V16, characters_V16), list(replies)


def no_entity() -> DataError:
    """The error for sites of which none has an annotated entity."""
    return DataError(
        "no site has an annotated entity in its training text",
        fix="check the tag maps and formats with `confide data check`",
    )


def vectors_of(
    file: Path, words: vocabulary.KeyedVocabulary, *, how: str, dim: int
) -> vocabulary.VectorFile:
    """The rows of a site's own vector file for common words.

    Raises Refusal if it is unusable, or its vectors have not `dim` numbers.
    """
    try:
        found = vocabulary.read_vectors(file, words, how=how)  # type: ignore[arg-type]
    except (OSError, ConfideError) as error:
        raise Refusal("vectors-missing") from error
    if found.dims != dim:
        raise Refusal("vectors-dimension")
    return found


def number_words(
    counted: Mapping[str, Counts], *, min_count: int, min_sites: int
) -> NDArray[np.uint8]:
    """The digests in the order of their ids: most frequent first, ties by digest. Shape V × 16."""
    everything = np.concatenate([one_each(digests) for digests, _ in counted.values()])
    distinct, places = np.unique(everything, return_inverse=True)
    occurrences = np.zeros(len(distinct), np.int64)
    np.add.at(occurrences, places, np.concatenate([counts for _, counts in counted.values()]))
    reporters = np.bincount(places, minlength=len(distinct))
    kept = (occurrences >= min_count) & (reporters >= min_sites)
    order = np.lexsort((np.arange(len(distinct)), -occurrences))
    chosen = distinct[order[kept[order]]]
    return chosen.view(np.uint8).reshape(len(chosen), vocabulary.DIGEST_BYTES).copy()


def with_new_rows(own_V16: NDArray[np.uint8], more_V16: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The digests with those of others that are new, behind them.

    Unchanged if the two have none in common, as under different keys, or are of buckets. A site
    that reports a digest of the others' makes them common: then there are rows that no word of this
    key has, as it could have reported by itself, and every word keeps its own.
    """
    own, more = map(vocabulary.rows_of_digests, (own_V16, more_V16))
    known = {*own}
    new = [row for row, digest in enumerate(more) if digest not in known]
    return np.concatenate([own_V16, more_V16[new]]) if len(new) < len(more) else own_V16


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
    return keyed_digest(key, "file", content_digest).hex()


def digested(key: bytes, kind: str, counts: Counter[str], *, floor: int) -> Counts:
    """The sorted digests of what occurs at least `floor` times, and how often each occurs."""
    pairs = sorted(
        (keyed_digest(key, kind, text), count) for text, count in counts.items() if count >= floor
    )
    digests = np.frombuffer(b"".join(mark for mark, _ in pairs), np.uint8)
    counted = np.array([count for _, count in pairs], np.int64)
    return digests.reshape(len(pairs), vocabulary.DIGEST_BYTES), counted


def one_each(digests: NDArray[np.uint8]) -> NDArray[np.void]:
    """Each row of 16 bytes as one value, which sorts as its bytes do."""
    return np.ascontiguousarray(digests).view(f"V{vocabulary.DIGEST_BYTES}").reshape(-1)


def _other_keys(parted: Parted) -> FederationError:
    """The error that names the sites with different keys."""
    one = "the key of {} differs from that of the other sites"
    who = parted.who(one, "these groups hold different keys")
    return FederationError(
        f"the sites do not share one key: {who}", fix="give every site the same key file"
    )


# --- A common vocabulary of which no site shows a digest
#
# Words are counted in buckets, and summed.
#
# A word's keyed digest begins with the number of its bucket. Each site counts its words by bucket
# and says of each bucket whether it has a word there, and only the sums over all sites are seen.
# A bucket with enough words at enough sites becomes a row, so words of one bucket share a row: of
# n words in 2^20 buckets, a share of about n / 2^20 (benchmarks/security/secure/vocabulary.py).
#
# What leaves a site: two numbers for each bucket, in a sum. What never leaves: a word, its digest,
# how many words the site has.
#
# Shapes: B buckets of words, C buckets of characters, V rows of the vocabulary.


WORD_BITS, CHARACTER_BITS = 20, 14
MOST_BITS = 24
Counted = NDArray[np.int32]


@dataclass(frozen=True)
class CountBuckets:
    """Count the words and characters of the training text by bucket."""

    how: str = carries("how words are normalised before counting")
    word_bits: int = carries("words have 2 to the power of this many buckets")
    character_bits: int = carries("characters have 2 to the power of this many; 0: none is counted")


@dataclass(frozen=True)
class BucketsCounted:
    """Counts of the training text by bucket: only their sums over all sites are seen."""

    word_counts_B: Counted = carries(
        "how often words of each bucket occur",
        rule="min_token_count",
        value=Value(least=0, shape=lambda ask: (bucket_count(ask.word_bits),)),
    )
    word_sites_B: Counted = carries(
        "1 for each bucket with a word of the site",
        rule="counts",
        value=Value(shape=lambda ask: (bucket_count(ask.word_bits),)),
    )
    character_counts_C: Counted = carries(
        "how often characters of each bucket occur",
        rule="min_token_count",
        value=Value(least=0, shape=lambda ask: (bucket_count(ask.character_bits),)),
    )
    character_sites_C: Counted = carries(
        "1 for each bucket with a character of the site",
        rule="counts",
        value=Value(shape=lambda ask: (bucket_count(ask.character_bits),)),
    )


def bucket_count(bits: int) -> int:
    """The number of buckets of `bits` bits; none if there are no bits."""
    return 2**bits if bits else 0


def buckets_counted(site: Site, ask: CountBuckets, tokens: Iterable[str]) -> BucketsCounted:
    """The site's counts of these tokens by bucket. Raises Refusal for absurd sizes."""
    if not 0 < ask.word_bits <= MOST_BITS or not 0 <= ask.character_bits <= MOST_BITS:
        raise Refusal("bad-ask")
    every = list(tokens)
    key, floor = site.key(), site.guards.min_token_count
    words = vocabulary.count_words(every, ask.how)  # type: ignore[arg-type]
    spelled: Counter[str] = vocabulary.count_characters(every) if ask.character_bits else Counter()
    return BucketsCounted(
        *_counted(key, "word", words, bits=ask.word_bits, floor=floor),
        *_counted(key, "character", spelled, bits=ask.character_bits, floor=floor),
    )


def _counted(
    key: bytes, kind: str, counts: Counter[str], *, bits: int, floor: int
) -> tuple[Counted, Counted]:
    found = np.zeros(bucket_count(bits), np.int32)
    for text, count in counts.items():
        if count >= floor:
            found[vocabulary.bucket_of(keyed_digest(key, kind, text), bits)] += count
    return found, (found > 0).astype(np.int32)


def count_buckets(
    site: Site, memory: object, ask: CountBuckets, turn: Turn
) -> tuple[BucketsCounted, object]:
    """Count the words and characters of the training sentences."""
    tokens = (token for example in training_examples(site) for token in example.tokens)
    return buckets_counted(site, ask, tokens), memory


def check_buckets(ask: CountBuckets, reply: BucketsCounted) -> None:
    """Raise GuardError unless sites are 1 where there is a count."""
    for counts, sites in (
        (reply.word_counts_B, reply.word_sites_B),
        (reply.character_counts_C, reply.character_sites_C),
    ):
        if (sites != (counts > 0)).any():
            raise GuardError("counts and sites of buckets do not fit")


COUNT_BUCKETS = Step.of(count_buckets, summed=True, check=check_buckets)


def asked_of_buckets(own: VocabularyTable, *, characters: bool = True) -> CountBuckets:
    """The ask to count words, and perhaps characters, by bucket."""
    return CountBuckets(own.normalise, WORD_BITS, CHARACTER_BITS if characters else 0)


def common_buckets(
    counts_B: NDArray[np.int64], sites_B: NDArray[np.int64], *, min_count: int, min_sites: int
) -> NDArray[np.uint8]:
    """The rows of a vocabulary by buckets, most frequent first, ties by number. Shape V × 16."""
    kept = (counts_B >= max(1, min_count)) & (sites_B >= max(1, min_sites))
    order = np.lexsort((np.arange(len(counts_B)), -counts_B))
    bits = max(0, len(counts_B) - 1).bit_length()
    return vocabulary.bucket_rows(order[kept[order]], bits)


# --- Contextual features at a site
#
# The states that a frozen encoder, which all sites have, gives.
#
# What leaves a site: a keyed check value of its encoder's files, and the width of its states. What
# never leaves: a state. Features are computed once, where the text is, and stay in the site's own
# cache (`confide.training.context`), since they reveal the text.


T = TypeVar("T")
NONE = "none"
WIDEST = 16_384


@dataclass(frozen=True)
class DescribeEncoder:
    """Find the frozen encoder."""

    encoder: str = carries("the encoder's name in the settings of the run")


@dataclass(frozen=True)
class EncoderDescribed:
    """Equal at sites that have the same encoder."""

    check: str = carries(
        "keyed check value of the encoder's files", rule="open", value=Value(text="digest")
    )
    dim: int = carries(
        "width of its state of a word", rule="open", value=Value(least=1, largest=WIDEST)
    )


def describe_encoder(
    site: Site, memory: object, ask: DescribeEncoder, turn: Turn
) -> tuple[EncoderDescribed, object]:
    """Find the site's own copy of the encoder."""
    encoder = encoder_of(site, ask.encoder)
    return EncoderDescribed(file_check(site.key(), encoder.digest), encoder.dim), memory


DESCRIBE_ENCODER = Step.of(describe_encoder)


def agree_on_encoder(federation: Federation, name: str) -> int:
    """The width of the states of the common encoder; 0 if the settings name none.

    A site whose encoder is not that of most sites is left out. Raises FederationError if too few
    have the same.
    """
    if name == NONE:
        return 0
    replies = federation.ask(DESCRIBE_ENCODER, DescribeEncoder(name), round=0)
    same = alike(
        federation,
        {site: (reply.check, reply.dim) for site, reply in replies.items()},
        step=DESCRIBE_ENCODER,
        why="its encoder differs from that of the other sites",
        error=_other_encoders,
    )
    return int(replies[same[0]].dim)


def _other_encoders(parted: Parted) -> FederationError:
    who = parted.who("{} has a different one", "these groups have different ones")
    return FederationError(
        f"the sites do not have the same encoder: {who}",
        fix="give every site the same files, and name them with `context` in its table",
    )


def find_encoder(place: str) -> FrozenEncoder:
    """The encoder of this name or folder, which may begin with `$CONFIDE_DATA`.

    An encoder that this process already uses, with the same files, is not read again. Raises what
    `load_encoder` raises.
    """
    found = load_encoder(str(locate(place)) if place.startswith("$") else place)
    return _IN_USE.setdefault((found.name, found.folder, found.digest), found)


_IN_USE: WeakValueDictionary[tuple[str, Path, str], FrozenEncoder] = WeakValueDictionary()


def trained_with(name: str, digest: str) -> FrozenEncoder:
    """The encoder of this name or folder that a model was trained with.

    Raises FederationError if these are other files, and what `load_encoder` raises.
    """
    found = find_encoder(name)
    if found.digest != digest:
        raise other_files(name)
    return found


def context_encoder(name: str, place: str | None) -> FrozenEncoder | None:
    """The frozen encoder of this name, or at this place; None if the name is `NONE`."""
    return None if name == NONE else find_encoder(place or name)


@contextmanager
def other_key() -> Iterator[None]:
    """Refuse a key that is not the one that the sites share."""
    try:
        yield
    except KeyFileError as error:
        raise Refusal("other-key") from error


def other_files(place: str) -> FederationError:
    """The error for public files that a model was not trained with."""
    return FederationError(
        "these are not the files that the model was trained with",
        got=place,
        fix="name the folder of the same files",
    )


def encoder_of(site: Site, name: str) -> FrozenEncoder:
    """The site's encoder. Raises Refusal if it is unusable."""
    found = found_at(site, name, shelf="encoders", find=find_encoder)
    site.files[f"encoder {name}"] = found.digest
    return found


def agreed_encoder(site: Site, name: str, digest: str) -> FrozenEncoder:
    """The site's encoder. Raises Refusal if it is not the one that the sites agreed on."""
    found = encoder_of(site, name)
    if found.digest != digest:
        raise Refusal("other-encoder")
    return found


def found_at(site: Site, name: str, *, shelf: str, find: Callable[[str], T]) -> T:
    """The site's public files of this name, looked up once per process.

    Files of one sort share a `shelf`. Raises Refusal if `find` cannot use them.
    """
    place = site.model_place(name)
    try:
        return site.once(shelf, place, make=lambda: find(place))
    except ConfideError as error:
        raise Refusal("encoder-missing") from error


def with_features(
    encoded: Encoded, examples: Sequence[Example], *, site: Site, name: str
) -> Encoded:
    """The text with the encoder's states of every token, from the site's cache."""
    if name == NONE or not examples:
        return encoded
    encoder = encoder_of(site, name)
    try:
        return with_cached(encoded, examples, encoder)
    except ConfideError as error:
        raise Refusal("features") from error


def with_cached(
    encoded: Encoded, examples: Sequence[Example], encoder: FrozenEncoder, *, keep: bool = True
) -> Encoded:
    """The text with states from the cache; with `keep` off, for text that is read only once."""
    sentences = [example.tokens for example in examples]
    return with_context(
        encoded, *contextual(sentences, encoder, folder=cache_folder() if keep else None)
    )


def with_encoder(
    federation: Federation,
    step: Step,
    digests: Mapping[str, str],
    *,
    ours: str,
    name: str = "encoder",
) -> list[str]:
    """The sites that have the server's encoder, whose digest is `ours`.

    The others are left out. Raises FederationError if too few have it.
    """

    def error(parted: Parted) -> FederationError:
        return FederationError(
            f"the sites do not have the server's {name}: {', '.join(parted.differing)} differs",
            fix="give every site the same files, and name them with `context` in its table",
        )

    why = f"its {name} is not the server's"
    return alike(federation, digests, step=step, why=why, error=error, ours=ours)


# --- Agreeing on entity types
#
# Those that each site annotates, and the union of all.
#
# What leaves a site: names of the entity types that it annotates, its number of training sentences
# and, if one is named, a digest of its public encoder or BART.
# What never leaves: text, annotation.


@dataclass(frozen=True)
class DescribeTypes:
    """Say which types you annotate, and find the encoder or BART, if one is named."""

    encoder: str = carries("the encoder's or BART's name in the settings of the run; empty: none")
    closed: bool = carries("whether the reply names no type, as the settings do", start=bool)


@dataclass(frozen=True)
class TypesDescribed:
    """A site's entity types, and the digest of its encoder or BART."""

    types: list[str] = carries(
        "names of the entity types that the site annotates (not text)",
        rule="open",
        value=Value(text="names"),
    )
    sentences: int = carries("number of its training sentences", value=Value(least=0))
    digest: str = carries(
        "digest of the public files of its encoder or BART; empty without one",
        rule="open",
        value=Value(text="digest"),
    )


def describe(
    site: Site,
    memory: object,
    ask: DescribeTypes,
    turn: Turn,
    *,
    find: Callable[[Site, str], Any],
    types: Callable[[Site], Collection[str]],
) -> tuple[TypesDescribed, object]:
    """Describe the annotation of the training text, and find the encoder or BART.

    `find` gives the site's public files of a name, `types` what the site annotates.
    """
    digest = find(site, ask.encoder).digest if ask.encoder else ""
    own = sorted(types(site))
    sentences = shown(site, len(training_examples(site)))
    return TypesDescribed([] if ask.closed else own, sentences, digest), memory


def describing(
    find: Callable[[Site, str], Any], *, types: Callable[[Site], Collection[str]]
) -> Step:
    """The step `describe` of a kind with such files and types."""
    return replace(Step.of(describe), answer=partial(describe, find=find, types=types))


def own_types(site: Site) -> frozenset[str]:
    """T_k: the types that the site says it annotates or, by default, those of its training text.

    Raises Refusal if a type occurs that the site says it does not annotate.
    """
    if "own types" not in site.cache:
        seen = {span[2] for example in training_examples(site) for span in example.spans}
        if site.annotates and not seen <= set(site.annotates):
            raise Refusal("tag-outside-set")
        site.cache["own types"] = frozenset(site.annotates or seen)
    found: frozenset[str] = site.cache["own types"]
    return found


def types_in_text(site: Site) -> list[str]:
    """The types that occur in the site's training text, sorted."""
    return sorted({span[2] for one in training_examples(site) for span in one.spans})


def agree_on_types(
    run: RunSettings,
    federation: Federation,
    *,
    step: Step,
    name: str = "",
    digest: str = "",
    public: Sequence[Document] = (),
    called: str = "",
) -> tuple[list[str], dict[str, TypesDescribed]]:
    """T, the union of the sites' types or the declared ones, and the sites' replies.

    An annotated public set adds its types to the union. `digest` is that of the server's files of
    this `name`; errors call them `called`.

    A site whose encoder is not the server's, or that annotates an undeclared type, is left out.
    Raises FederationError or DataError if too few are left, and DataError if no site annotates a
    type.
    """
    closed = run.privacy is not None
    replies: dict[str, TypesDescribed] = federation.ask(step, DescribeTypes(name, closed), round=0)
    digests = {site: reply.digest for site, reply in replies.items()}
    same = with_encoder(federation, step, digests, ours=digest, name=called or run.model.kind)
    replies = {site: replies[site] for site in same}
    declared = list(run.data.types)
    if declared:
        replies = _of_these_types(declared, federation, replies, step=step)
    seen = {kind for reply in replies.values() for kind in reply.types}
    if not seen and not closed:
        raise no_entity()
    seen |= {entity.type for document in public for entity in document.entities}
    return declared or sorted(seen), replies


def asked_of_types(run: RunSettings, name: str = "") -> dict[str, object]:
    """Fields of the ask that describes the sites' types and files, from the settings."""
    return vars(DescribeTypes(name, run.privacy is not None))


def agreed(form: object, replies: Mapping[str, TypesDescribed]) -> Agreed:
    """A form that the sites of these replies agreed on."""
    return Agreed(
        form,
        sorted(replies),
        {site: reply.sentences for site, reply in replies.items()},
        {site: reply.types for site, reply in replies.items()},
    )


def _of_these_types(
    declared: list[str], federation: Federation, replies: dict[str, TypesDescribed], *, step: Step
) -> dict[str, TypesDescribed]:
    """The replies of the sites that annotate only these types; the others are left out.

    Raises DataError if too few are left.
    """

    def strange(parted: Parted) -> DataError:
        seen = {kind for reply in replies.values() for kind in reply.types}
        odd = {kind for site in parted.differing for kind in replies[site].types} - set(declared)
        return DataError(
            f"a site annotates {min(odd)!r}, which data.types does not name",
            expected=", ".join(sorted(declared)),
            got=", ".join(sorted(seen)) or "no type",
            fix="map the names in the sites' `tags`, or correct data.types",
        )

    fits = {site: set(reply.types) <= set(declared) for site, reply in replies.items()}
    why = "it annotates a type that data.types does not name"
    same = alike(federation, fits, step=step, why=why, error=strange, ours=True)
    return {site: replies[site] for site in same}


# --- Tuning of an encoder
#
# The option of all kinds with an encoder (`confide.training.encoder.Tuning`).


TUNING = "what of the encoder is trained: all, top N, lora RANK ALPHA, bias or frozen"
"""The carried value of the field `tuning` of a form."""


def tuning_of(run: RunSettings) -> Tuning:
    """Read the tuning from the settings."""
    own = run.encoder
    return Tuning(own.tune, layers=own.layers, rank=own.rank, alpha=own.alpha, factors=own.factors)


def check_no_encoder(run: RunSettings, model: str) -> None:
    """Raise SettingsError if a part of an encoder is to be tuned where no encoder is trained."""
    if run.encoder.tune != "all":
        raise SettingsError(
            f"{model} has no encoder that could be tuned",
            expected='encoder.tune = "all"',
            got=repr(run.encoder.tune),
            fix="remove [encoder], or choose a model with an encoder",
        )


@contextmanager
def keeping_features() -> Iterator[None]:
    """Refuse if the features of a frozen encoder cannot be kept on the site's disk."""
    try:
        yield
    except DataError as error:
        raise Refusal("features") from error
