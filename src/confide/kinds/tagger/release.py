"""A released tagger: its words are in the clear, so it needs no key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confide.data.batches.examples import examples_from
from confide.data.batches.vocabulary import (
    ClearVocabulary,
    KeyedVocabulary,
    count_characters,
    count_words,
)
from confide.federation.messages import Arrays, carries, decode_file
from confide.kinds.context import NONE, find_encoder
from confide.kinds.entities import EntityExtractor, extractor_with
from confide.kinds.releases import Holders, named, shape_of
from confide.kinds.tagger.form import (
    CHARACTER_ROWS,
    WORD_ROWS,
    TaggerForm,
    TaggerShape,
    Vocabularies,
    trainer_of,
)
from confide.kinds.vocabulary import common_key
from confide.learning.crf_modelling import TaggerTrainer

RELEASED_AS = "model.safetensors"


@dataclass(frozen=True)
class Released(TaggerShape):
    """A tagger that needs no key."""

    words: list[str] = carries("the words, in order of ids")
    characters: list[str] = carries("the characters, in order of ids")
    weights: Arrays = carries("weights of the tagger")
    apart: int = carries("number of its sites that annotated only some types")


def in_clear(form: TaggerForm, weights: Arrays, holders: Holders) -> Released:
    """The tagger with these sites' words in the clear. Raises KeyFileError."""
    examples, _ = examples_from(holders.train)
    known = common_key(holders.secret(), nonce=form.nonce, check=form.check)
    tokens = [token for example in examples for token in example.tokens]
    words, word_ids = named(
        KeyedVocabulary(form.word_digests_V16, "word", known),
        sorted(count_words(tokens, form.how)),  # type: ignore[arg-type]
    )
    characters, character_ids = named(
        KeyedVocabulary(form.character_digests_V16, "character", known),
        sorted(count_characters(tokens)),
    )
    weights = dict(weights)
    weights[WORD_ROWS] = weights[WORD_ROWS][word_ids]
    for name in CHARACTER_ROWS:
        if name in weights:
            weights[name] = weights[name][character_ids]
    shape = shape_of(form, TaggerShape)
    shape["sizes"] = {**form.sizes, "words": len(word_ids), "characters": len(character_ids)}
    return Released(
        **shape, words=words, characters=characters, weights=weights, apart=holders.apart
    )


def reads_clear(
    shape: TaggerShape, words: Sequence[str], characters: Sequence[str]
) -> TaggerTrainer:
    """The trainer of a tagger that reads these words and characters."""
    spelled = None if shape.character == NONE else ClearVocabulary(tuple(characters), "character")
    return trainer_of(shape, Vocabularies(ClearVocabulary(tuple(words), "word"), spelled))


def released(file: Path) -> EntityExtractor:
    """The extractor of a released tagger; with contextual features, it needs their encoder too."""
    model = decode_file(Released, file.read_bytes())
    encoder = None if model.context == NONE else find_encoder(model.context)
    trainer = reads_clear(model, model.words, model.characters)
    extract = extractor_with(trainer, model.weights, encoder=encoder)
    return replace(extract, apart=bool(model.apart))
