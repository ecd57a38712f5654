"""Prediction with a tagger: spans with their confidence, and documents with entities.

Shapes: B sentences, L tokens, N spans, K tokens of a span.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.encoding import Encoded, TagSet, encode
from confide.data.batches.examples import Example, Span, examples_from
from confide.data.batches.tagger import TaggerBatch, predict_batches
from confide.data.batches.vocabulary import How, Vocabulary
from confide.learning.devices import beside, home, predicting
from confide.learning.windows import FoundSpan, joined
from confide.models import tagger
from confide.models.crf import Posterior, Scores, span_probabilities
from confide.models.tagger import CrfTagger
from confide.text.document import Document
from confide.text.segment import segmented
from confide.text.tagging import entities_from_spans


def predict_spans(
    model: CrfTagger,
    encoded: Encoded,
    *,
    wanted: Collection[str] | None = None,
    tokens_per_batch: int = 4096,
) -> list[list[FoundSpan]]:
    """The spans of each example, in order; windows of one example are joined.

    The confidence of a span is the CRF's probability that its tokens are exactly this entity. With
    `wanted`, the CRF has only the tags of these types: it gives the best path without the others,
    and confidences given that nothing else is there. If windows overlap, an entity belongs to the
    window that owns its first token.
    """
    by_window: list[list[FoundSpan]] = [[] for _ in range(len(encoded))]
    with predicting(model):
        for batch in predict_batches(encoded, tokens_per_batch=tokens_per_batch):
            for row, spans in _batch_spans(model, batch, encoded.tags, wanted=wanted):
                by_window[int(batch.rows_B[row])] = spans
    return joined(by_window, encoded.windows, examples=encoded.examples)


class Prepared(NamedTuple):
    """Documents ready for prediction: segmented, without annotation, and encoded."""

    documents: list[Document]
    examples: list[Example]
    encoded: Encoded


def prepare(
    documents: Sequence[Document],
    *,
    words: Vocabulary,
    characters: Vocabulary | None,
    tags: TagSet,
    how: How,
    max_tokens: int = 512,
    max_characters: int = 40,
) -> Prepared:
    """Prepare documents: the work that does not depend on weights, done once for many rounds."""
    bare, examples = bare_sentences(documents)
    encoded = encode(
        examples,
        words=words,
        characters=characters,
        tags=tags,
        how=how,
        max_tokens=max_tokens,
        max_characters=max_characters,
    )
    return Prepared(bare, examples, encoded)


def annotate(model: CrfTagger, prepared: Prepared) -> list[Document]:
    """The documents, segmented, with only the entities that the model finds."""
    found = predict_spans(model, prepared.encoded)
    return with_entities(prepared.documents, prepared.examples, found)


def bare_sentences(documents: Sequence[Document]) -> tuple[list[Document], list[Example]]:
    """The documents, segmented and without annotation, and their sentences."""
    bare = [replace(segmented(one), entities=(), relations=()) for one in documents]
    return bare, examples_from(bare)[0]


def with_entities(
    documents: Sequence[Document], examples: Sequence[Example], found: Sequence[list[FoundSpan]]
) -> list[Document]:
    """The documents with these spans of each of their examples as entities."""
    spans: list[list[list[Span]]] = [[[] for _ in d.sentences] for d in documents]
    confidences: list[list[list[float]]] = [[[] for _ in d.sentences] for d in documents]
    for example, spotted in zip(examples, found, strict=True):
        spans[example.document][example.sentence] = [span[:3] for span in spotted]
        confidences[example.document][example.sentence] = [span.confidence for span in spotted]
    return [
        replace(document, entities=entities_from_spans(document, per_sentence, confidences=chances))
        for document, per_sentence, chances in zip(documents, spans, confidences, strict=True)
    ]


def _batch_spans(
    model: CrfTagger, batch: TaggerBatch, tags: TagSet, *, wanted: Collection[str] | None
) -> list[tuple[int, list[FoundSpan]]]:
    """The spans of the batch's rows that have an entity."""
    emissions_BLY = home(model(beside(batch, model)))
    scores = Scores(*map(home, model.crf.scores()))
    if wanted is not None:
        tags, kept = tags.only(wanted)
        emissions_BLY, scores = emissions_BLY[:, :, kept], scores.only(kept)
    tags_BL, rows_R, found = tagger.decode_with_posterior(
        emissions_BLY, scores, lengths_B=batch.lengths_B
    )
    if found is None:
        return []
    lengths_B = batch.lengths_B.tolist()
    spans = [
        (place, span)
        for place, row in enumerate(rows_R.tolist())
        for span in tags.spans(tags_BL[row, : lengths_B[row]].numpy())
    ]
    lengths_R = batch.lengths_B[rows_R].tolist()
    chances = _chances(found, tags, spans)
    if tags.scheme == "iob2":
        inner = [i for i, (place, span) in enumerate(spans) if span[1] < lengths_R[place]]
        longer = _chances(found, tags, [spans[i] for i in inner], grown=True)
        chances[inner] -= longer
    by_place: list[list[FoundSpan]] = [[] for _ in lengths_R]
    for (place, span), chance in zip(spans, np.clip(chances, 0.0, 1.0).tolist(), strict=True):
        by_place[place].append(FoundSpan(*span, chance))
    return list(zip(rows_R.tolist(), by_place, strict=True))


def _chances(
    found: Posterior, tags: TagSet, spans: Sequence[tuple[int, Span]], *, grown: bool = False
) -> NDArray[np.float64]:
    """The probability of each span's tags; `grown` adds the tag that would extend it by one."""
    if not spans:
        return np.zeros(0)
    at_2N, tags_NK, lengths_N = paths_of(tags, spans, grown=grown)
    return span_probabilities(found, at_2N, tags_NK=tags_NK, lengths_N=lengths_N).numpy()


def paths_of(
    tags: TagSet, spans: Sequence[tuple[int, Span]], *, grown: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """For each span: at_2N, its row and first token; tags_NK, its tags; lengths_N, their number.

    `grown` adds the tag that would extend it by one. Padding is 0.
    """
    paths = [tags.path(name, end - start + grown) for _, (start, end, name) in spans]
    lengths_N = torch.tensor([len(path) for path in paths])
    steps_K = torch.arange(int(lengths_N.max()))
    tags_NK = torch.zeros(len(paths), len(steps_K), dtype=torch.int64)
    tags_NK[steps_K < lengths_N[:, None]] = torch.tensor([tag for path in paths for tag in path])
    at_2N = torch.tensor([[place for place, _ in spans], [span[0] for _, span in spans]])
    return at_2N, tags_NK, lengths_N
