"""Hypothesis strategies for documents, and small helpers for files."""

from __future__ import annotations

from hypothesis import strategies as st

from confide.text.document import Document, Entity, Relation, Sentence
from confide.text.tagging import tags_from_spans

TYPES = ("Drug", "Effect", "creative-work")
LETTERS = st.characters(
    exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters="\ufeff"
)
WORDS = st.text(LETTERS, min_size=1, max_size=6).filter(
    lambda word: word.strip() == word != "" and not word.startswith("-DOCSTART-")
)


@st.composite
def flat(draw, length, types=TYPES):
    """Spans over `length` tokens that do not overlap."""
    borders = draw(st.lists(st.integers(0, length), max_size=8, unique=True).map(sorted))
    pairs = zip(borders[::2], borders[1::2], strict=False)
    return [(start, end, draw(st.sampled_from(types))) for start, end in pairs]


@st.composite
def tag_sequences(draw, scheme, types=TYPES, max_size=10):
    """One sentence's tags, valid under a scheme, and its spans."""
    length = draw(st.integers(1, max_size))
    spans = draw(flat(length, types))
    return tags_from_spans(length, spans, scheme), spans


def joined(rows):
    """Text and sentences of rows of tokens, as the CoNLL reader makes them."""
    sentences, offset = [], 0
    for row in rows:
        tokens = []
        for token in row:
            tokens.append((offset, offset + len(token)))
            offset += len(token) + 1
        sentences.append(Sentence(tokens[0][0], tokens[-1][1], tuple(tokens)))
    return "\n".join(" ".join(row) for row in rows), tuple(sentences)


@st.composite
def tokenised(draw, id="d", max_sentences=3):
    """A segmented document with entities that fit its tokens."""
    rows = draw(
        st.lists(st.lists(WORDS, min_size=1, max_size=8), min_size=1, max_size=max_sentences)
    )
    text, sentences = joined(rows)
    entities = []
    for sentence in sentences:
        for start, end, kind in draw(flat(len(sentence.tokens))):
            span = (sentence.tokens[start][0], sentence.tokens[end - 1][1])
            entities.append(Entity(f"T{len(entities) + 1}", kind, (span,)))
    return Document(id, text, tuple(entities), sentences=sentences)


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,6}", fullmatch=True)


@st.composite
def any_documents(draw, texts=TEXTS, id="d"):
    """A document of anything: discontinuous and nested entities, relations, attributes."""
    text = draw(texts)
    pairs = st.lists(st.tuples(NAMES, NAMES), max_size=2).map(tuple)
    entities = []
    for number in range(1, 1 + draw(st.integers(0, 4 if len(text) > 1 else 0))):
        borders = sorted(draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=6)))
        fragments = tuple(zip(borders[::2], borders[1::2], strict=False))
        sure = draw(st.none() | st.floats(0, 1))
        concepts = tuple(draw(st.lists(NAMES, max_size=2)))
        entities.append(Entity(f"T{number}", draw(NAMES), fragments, sure, concepts, draw(pairs)))
    relations = []
    for number in range(1, 1 + draw(st.integers(0, 2 if entities else 0))):
        ends = [draw(st.sampled_from(entities)).id for _ in range(2)]
        sure = draw(st.none() | st.floats(0, 1))
        relations.append(
            Relation(f"R{number}", draw(NAMES), *ends, confidence=sure, attributes=draw(pairs))
        )
    return Document(id, text, tuple(entities), tuple(relations))


def put(folder, name, content):
    """A file with this content (text as UTF-8 with its line ends as they are)."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def kinds(problems):
    """The kinds of problems, in order."""
    return [problem.kind for problem in problems]
