"""A release: a copy of a model that needs no run and no key, by an explicit act of a site.

The model of a run knows its words by keyed digest only. A site that holds the key can recognise
the words of its own training text, and hand on a copy that needs no key. The copy tells which
words occur in that text; that is what the act is about. A relation model reads the word pieces of
a public encoder: its copy has no word list, and needs the files of that encoder. An encoder that
tags words, or a LightNER, is like that; a bag model like the one or the other, by what reads its
sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import examples_from
from confide.data.batches.vocabulary import (
    SPECIALS,
    ClearVocabulary,
    KeyedVocabulary,
    count_characters,
    count_words,
)
from confide.errors import RunError
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.federation.keys import read_key
from confide.federation.messages import Arrays, carries, decode_file, encode
from confide.kinds.bags.extractor import BagExtractor, extractor_with
from confide.kinds.bags.form import PCNN, BagForm, words_of
from confide.kinds.bags.form import WORD_ROWS as WORDS
from confide.kinds.context import NONE, find_encoder
from confide.kinds.encoder import EncoderForm
from confide.kinds.entities import EntityExtractor
from confide.kinds.entities import extractor_with as entity_extractor_with
from confide.kinds.lightner import LightnerForm
from confide.kinds.relations.extractor import RelationExtractor
from confide.kinds.relations.form import RelationForm
from confide.kinds.tagger.form import (
    CHARACTER_ROWS,
    WORD_ROWS,
    TaggerForm,
    TaggerShape,
    modeller_of,
    shape_of,
    vocabulary_for,
)
from confide.methods import Method, method_of
from confide.runs.folder import RunFolder
from confide.runs.gathering import gather
from confide.settings import Settings, Task
from confide.text.segment import tokens_of

FILE, RELATIONS, BAGS = "model.safetensors", "relations.safetensors", "bags.safetensors"
TOKENS, BART = "tokens.safetensors", "lightner.safetensors"


@dataclass(frozen=True)
class Released(TaggerShape):
    """A tagger that needs no key."""

    words: list[str] = carries("the words, in order of ids")
    characters: list[str] = carries("the characters, in order of ids")
    weights: Arrays = carries("weights of the tagger")
    apart: int = carries("number of its sites that annotated some of the types only")


@dataclass(frozen=True)
class ReleasedBags(BagForm):
    """A bag model that needs no key; where an encoder reads, it needs that encoder's files."""

    words: list[str] = carries("the words, in order of ids; none where an encoder reads")
    weights: Arrays = carries("weights of the bag model")


@dataclass(frozen=True)
class ReleasedRelations(RelationForm):
    """A relation classifier: it reads the pieces of a public encoder, so it needs no key."""

    weights: Arrays = carries("weights of the classifier, those of its encoder included")


@dataclass(frozen=True)
class ReleasedTokens(EncoderForm):
    """An encoder that tags words; it needs no key, and its files for what it is made of."""

    weights: Arrays = carries("weights of encoder and linear layer")
    apart: int = carries("number of its sites that annotated some of the types only")


@dataclass(frozen=True)
class ReleasedBart(LightnerForm):
    """A LightNER; it needs the BART that it was made of."""

    weights: Arrays = carries("weights of what is trained")
    apart: int = carries("number of its sites that annotated some of the types only")


OF_A_PUBLIC_MODEL: dict[type, tuple[str, type[Any]]] = {
    RelationForm: (RELATIONS, ReleasedRelations),
    EncoderForm: (TOKENS, ReleasedTokens),
    LightnerForm: (BART, ReleasedBart),
}
"""Forms of models that read a public encoder's pieces, and how they are released."""


def release(run: Path, *, out: Path, site: str | None = None, key: Path | None = None) -> Path:
    """Write the model of a run to the folder `out`, so that it can be used without the run.

    A relation model is its weights, and names of relations and types. A tagger's words, and those
    of a bag model that reads words, are those of `site` (or of all), in clear: `key` is the sites'
    shared key file; by default the one that the run's settings name. Rows of words and characters
    that occur at no such site cannot be named; they are left out, and such words are read as
    unknown ones.
    Raises RunError, KeyFileError, DataError.
    """
    folder = RunFolder(run)
    settings = folder.settings()
    for file in (FILE, RELATIONS, BAGS, TOKENS, BART):
        if (out / file).exists():
            raise RunError("there is a release in this folder already", where=str(out / file))
    method = method_of(settings)
    if method.task == "text":
        return _bart_of(folder, method, settings, out=out)
    form, weights = method(settings).model(*folder.trained(method, site))
    public = next((kind for kind in OF_A_PUBLIC_MODEL if isinstance(form, kind)), None)
    if public is not None and method.task != "bags":
        file, kind = OF_A_PUBLIC_MODEL[public]
        shape = {field.name: getattr(form, field.name) for field in fields(public)}
        if method.task == "ner":
            shape["apart"] = _apart(settings)
        message = encode(kind(**shape, weights=dict(weights)))
    else:
        specs: list[SiteSpec] = []
        if method.task == "ner" or form.reader == PCNN:
            gathered = gather(settings, folder.sites, key_file=folder.key_file(settings))
            specs = [spec for spec in gathered.specs if site in (None, spec.name)]
        if method.task == "bags":
            file, message = BAGS, encode(_bags_in_clear(form, weights, specs=specs, key=key))
        else:
            clear = _in_clear(form, weights, specs=specs, key=key, apart=_apart(settings))
            file, message = FILE, encode(clear)
    write_of_run(out / file, message)
    return out


def _apart(settings: Settings) -> int:
    """How many sites annotate some of the types only, so far as the settings say.

    1 at least, where the method is for such sites.
    """
    named = sum(bool(table.knows) for table in settings.site)
    return max(named, int(method_of(settings).apart))


def _bart_of(run: RunFolder, method: type[Method], settings: Settings, *, out: Path) -> Path:
    """Write the BART that a run pretrained, as transformers reads it. Raises RunError, DataError.

    It may have learnt sentences by heart; that is what the act is about.
    """
    model = method(settings).extractor(*run.trained(method, None), key=None)
    model.write(out)
    return out


def _bags_in_clear(
    form: BagForm, weights: Arrays, *, specs: Sequence[SiteSpec], key: Path | None
) -> ReleasedBags:
    """The bag model with the words of these sites in clear; of an encoder's pieces, as it is."""
    shape = {field.name: getattr(form, field.name) for field in fields(BagForm)}
    weights, words = dict(weights), list[str]()
    if form.reader == PCNN:
        secret = key or specs[0].key_file
        assert secret is not None
        tokens = (
            document.text[start:end]
            for spec in specs
            for document in spec.train
            for start, end in tokens_of(document.text)
        )
        texts = sorted(count_words(tokens, form.how))  # type: ignore[arg-type]
        words, ids = _named(words_of(form, read_key(Path(secret))), texts)
        weights[WORDS] = weights[WORDS][ids]
        shape["word_digests_V16"] = form.word_digests_V16[:0]
    return ReleasedBags(**shape, words=words, weights=weights)


def _in_clear(
    form: TaggerForm,
    weights: Arrays,
    *,
    specs: Sequence[SiteSpec],
    key: Path | None,
    apart: int,
) -> Released:
    """The tagger with the words of these sites, which hold the key, in clear."""
    secret = key or specs[0].key_file
    assert secret is not None
    known = read_key(Path(secret))
    examples, _ = examples_from([document for spec in specs for document in spec.train])
    tokens = [token for example in examples for token in example.tokens]
    keyed = vocabulary_for(form, known)
    words, word_ids = _named(
        keyed["words"],
        sorted(count_words(tokens, form.how)),  # type: ignore[arg-type]
    )
    characters, character_ids = _named(
        KeyedVocabulary(form.character_digests_V16, "character", known),
        sorted(count_characters(tokens)),
    )
    weights = dict(weights)
    weights[WORD_ROWS] = weights[WORD_ROWS][word_ids]
    for name in CHARACTER_ROWS:
        if name in weights:
            weights[name] = weights[name][character_ids]
    shape = shape_of(form)
    shape["sizes"] = {**form.sizes, "words": len(word_ids), "characters": len(character_ids)}
    return Released(**shape, words=words, characters=characters, weights=weights, apart=apart)


def release_task(folder: Path) -> Task | None:
    """The task of a release that annotates; None where this is no folder of one.

    A BART has a `config.json` beside its weights, and annotates nothing.
    """
    if (Path(folder) / "config.json").is_file():
        return None
    if (Path(folder) / BAGS).is_file():
        return "bags"
    if (Path(folder) / RELATIONS).is_file():
        return "re"
    found = any((Path(folder) / file).is_file() for file in (FILE, TOKENS, BART))
    return "ner" if found else None


def released(folder: Path) -> EntityExtractor | RelationExtractor | BagExtractor:
    """The extractor of a release. Raises MessageError where the file is damaged.

    A model with a frozen encoder needs that encoder here too, and a relation model the files of
    the encoder that it was made of.
    """
    if release_task(folder) == "bags":
        bags = decode_file(ReleasedBags, (Path(folder) / BAGS).read_bytes())
        if bags.reader != PCNN:
            return bags.extractor(bags.weights, key=None)
        return extractor_with(bags, bags.weights, ClearVocabulary(tuple(bags.words), "word"))
    if release_task(folder) == "re":
        made = decode_file(ReleasedRelations, (Path(folder) / RELATIONS).read_bytes())
        return made.extractor(made.weights, key=None)
    for file, kind in ((TOKENS, ReleasedTokens), (BART, ReleasedBart)):
        if (Path(folder) / file).is_file():
            shape: Any = decode_file(kind, (Path(folder) / file).read_bytes())
            extract: EntityExtractor = shape.extractor(shape.weights, key=None)
            return replace(extract, apart=bool(shape.apart))
    model = decode_file(Released, (Path(folder) / FILE).read_bytes())
    characters = ClearVocabulary(tuple(model.characters), "character")
    vocabulary: dict[str, Any] = {
        "words": ClearVocabulary(tuple(model.words), "word"),
        "characters": None if model.character == NONE else characters,
    }
    encoder = None if model.context == NONE else find_encoder(model.context)
    extract = entity_extractor_with(modeller_of(model, vocabulary), model.weights, encoder=encoder)
    return replace(extract, apart=bool(model.apart))


def _named(vocabulary: KeyedVocabulary, texts: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The texts that the vocabulary knows, by id; and the rows to keep, the specials first."""
    ids = vocabulary.ids(texts)
    known = sorted((int(id), text) for id, text in zip(ids, texts, strict=True) if id >= SPECIALS)
    rows = [*range(SPECIALS), *(id for id, _ in known)]
    return [text for _, text in known], np.array(rows, np.int64)
