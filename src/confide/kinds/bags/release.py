"""A released bag model: it needs no key; if a PCNN reads, its words are in the clear."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confide.data.batches.vocabulary import ClearVocabulary, count_words
from confide.federation.messages import Arrays, carries, decode_file
from confide.kinds.bags.extractor import BagExtractor, extractor_with
from confide.kinds.bags.form import PCNN, WORD_ROWS, BagForm, words_of
from confide.kinds.releases import Holders, named, shape_of
from confide.text.segment import tokens_of


@dataclass(frozen=True)
class ReleasedBags(BagForm):
    """A bag model that needs no key; if an encoder reads, it needs that encoder's files."""

    words: list[str] = carries("the words, in order of ids; none if an encoder reads")
    weights: Arrays = carries("weights of the bag model")


def in_clear(form: BagForm, weights: Arrays, holders: Holders) -> ReleasedBags:
    """The bag model with these sites' words in the clear; unchanged if an encoder reads."""
    shape = shape_of(form, BagForm)
    weights, words = dict(weights), list[str]()
    if form.reader == PCNN:
        tokens = (
            document.text[start:end]
            for document in holders.train
            for start, end in tokens_of(document.text)
        )
        texts = sorted(count_words(tokens, form.how))  # type: ignore[arg-type]
        words, ids = named(words_of(form, holders.secret()), texts)
        weights[WORD_ROWS] = weights[WORD_ROWS][ids]
        shape["word_digests_V16"] = form.word_digests_V16[:0]
    return ReleasedBags(**shape, words=words, weights=weights)


def released(file: Path) -> BagExtractor:
    """The extractor of a released model. Raises MessageError."""
    bags = decode_file(ReleasedBags, file.read_bytes())
    if bags.reader != PCNN:
        return bags.extractor(bags.weights, key=None)
    return extractor_with(bags, bags.weights, ClearVocabulary(tuple(bags.words), "word"))
