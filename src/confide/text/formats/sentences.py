"""Text that comes as a list of sentences, joined into one text that keeps them apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confide.text.document import Sentence
from confide.text.segment import tokens_of
from confide.text.tokens import packed


class Joined(NamedTuple):
    """A text, its sentences with their tokens, and where each of the given strings begins."""

    text: str
    sentences: tuple[Sentence, ...]
    starts: tuple[int, ...]


def joined(texts: Iterable[str]) -> Joined:
    """Sentences joined by newlines. Each stays one sentence, whatever full stops it contains."""
    given = list(texts)
    if len(given) == 1:
        return Joined(given[0], one_sentence(given[0]), (0,))
    sentences: list[Sentence] = []
    starts: list[int] = []
    offset = 0
    for text in given:
        tokens = packed((start + offset, end + offset) for start, end in tokens_of(text))
        if tokens:
            sentences.append(Sentence(tokens[0][0], tokens[-1][1], tokens))
        starts.append(offset)
        offset += len(text) + 1
    return Joined("\n".join(given), tuple(sentences), tuple(starts))


def one_sentence(text: str) -> tuple[Sentence, ...]:
    """A text as one sentence with its tokens; none for a text of white space."""
    tokens = packed(tokens_of(text))
    return (Sentence(tokens[0][0], tokens[-1][1], tokens),) if tokens else ()
