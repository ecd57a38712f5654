"""Documents for the scoring tests: hand-made ones, and hypothesis strategies."""

from itertools import pairwise

from hypothesis import strategies as st

from confide.text.document import Document, Entity, Sentence

TYPES = ("Drug", "Effect", "Test")
LENGTH = 24
TEXT = "abcdefghijklmnopqrstuvwx"


def document(*spans, id="d", text=TEXT, sentences=()):
    """A document from (type, start, end, start, end, ...) tuples, a confidence last."""
    entities = []
    for number, (type_, *numbers) in enumerate(spans):
        confidence = numbers.pop() if len(numbers) % 2 else None
        fragments = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        entities.append(Entity(f"T{number}", type_, fragments, confidence))
    return Document(id, text, tuple(entities), sentences=sentences)


def sentences(*borders):
    """Sentences without tokens that lie between the borders."""
    return tuple(Sentence(start, end, ()) for start, end in pairwise(borders))


@st.composite
def flat_spans(draw, types=TYPES, length=LENGTH):
    """(start, end, type) in order, none overlapping another; they may touch."""
    borders = sorted(draw(st.sets(st.integers(0, length), max_size=10)))
    spans = []
    for start, end in pairwise(borders):
        if draw(st.booleans()):
            spans.append((start, end, draw(st.sampled_from(types))))
    return spans


@st.composite
def fragments(draw, length=LENGTH, most=3):
    """Ascending fragments that do not touch."""
    count = draw(st.integers(1, most))
    borders = draw(st.lists(st.integers(0, length), min_size=2 * count, max_size=2 * count,
                            unique=True))  # fmt: skip
    borders.sort()
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def any_entities(types=TYPES, most=7):
    """Entities that may nest, overlap, repeat and be discontinuous."""
    pairs = st.lists(st.tuples(st.sampled_from(types), fragments()), max_size=most)
    return pairs.map(
        lambda chosen: tuple(Entity(f"T{n}", type_, span) for n, (type_, span) in enumerate(chosen))
    )


def flat_document(spans, id="d"):
    return document(*((type_, start, end) for start, end, type_ in spans), id=id)


@st.composite
def corpora(draw, sides=2, most=4):
    """`sides` lists of documents with the same ids and different entities."""
    size = draw(st.integers(0, most))
    return [
        [Document(f"d{n}", TEXT, draw(any_entities())) for n in range(size)] for _ in range(sides)
    ]
