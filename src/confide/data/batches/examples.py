"""From documents to examples: one sentence, its tokens and the flat spans a tagger can learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from confide.text.document import Document, Problem
from confide.text.segment import segmented
from confide.text.tagging import all_spans, flat_spans

Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence as a tagger sees it.

    `document` and `sentence` are positions: of the document among those given, of the sentence in
    its document. `spans` are (first token, one past the last token, type), in order, not
    overlapping.
    """

    document: int
    sentence: int
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] = ()


def examples_from(documents: Sequence[Document]) -> tuple[list[Example], list[Problem]]:
    """Every sentence that has a token, in order, and all annotations that a flat tagger leaves out.

    Documents without sentences are first segmented by rule. Equal words are one string.
    """
    examples: list[Example] = []
    problems: list[Problem] = []
    words: dict[str, str] = {}
    for number, given in enumerate(documents):
        document = segmented(given)
        spans_per_sentence, found = flat_spans(document)
        problems.extend(found)
        for index, (sentence, spans) in enumerate(
            zip(document.sentences, spans_per_sentence, strict=True)
        ):
            if sentence.tokens:
                tokens = document.token_texts(sentence)
                tokens = tuple(map(words.setdefault, tokens, tokens))
                examples.append(Example(number, index, tokens, tuple(spans)))
    return examples, problems


def left_out_of(documents: Iterable[Document]) -> list[Problem]:
    """The annotations that `examples_from` leaves out, without making the examples."""
    return _problems(flat_spans, documents)


def left_out_of_nested(documents: Iterable[Document]) -> list[Problem]:
    """The annotations that `nested_spans` leaves out."""
    return _problems(all_spans, documents)


def _problems(
    spans: Callable[[Document], tuple[object, list[Problem]]], documents: Iterable[Document]
) -> list[Problem]:
    return [
        one for document in documents if document.entities
        for one in spans(segmented(document))[1]
    ]  # fmt: skip


def nested_spans(documents: Sequence[Document]) -> list[list[Span]]:
    """The spans of each example of `examples_from`, with those that share tokens with others."""
    found: list[list[Span]] = []
    for document in map(segmented, documents):
        for sentence, spans in zip(document.sentences, all_spans(document)[0], strict=True):
            if sentence.tokens:
                found.append(spans)
    return found
