"""Documents to examples: positions, segmentation, and what is left out."""

from __future__ import annotations

from confide.text.document import Document, Entity, Sentence
from confide.training.batches import Example, examples_from

TEXT = "Severe joint pain. None now."
SEGMENTED = Document(
    id="d1",
    text=TEXT,
    entities=(Entity("T1", "ADR", ((7, 17),)), Entity("T2", "ADR", ((7, 12),))),
    sentences=(
        Sentence(0, 18, ((0, 6), (7, 12), (13, 17), (17, 18))),
        Sentence(18, 18, ()),
        Sentence(19, 28, ((19, 23), (24, 27), (27, 28))),
    ),
)


def test_every_sentence_with_a_token_is_an_example() -> None:
    examples, problems = examples_from([SEGMENTED])
    assert examples == [
        Example(0, 0, ("Severe", "joint", "pain", "."), ((1, 3, "ADR"),)),
        Example(0, 2, ("None", "now", ".")),
    ]
    assert [problem.kind for problem in problems] == ["nested"]
    assert problems[0].lost


def test_bare_text_is_segmented_first() -> None:
    examples, problems = examples_from([SEGMENTED, Document("d2", "He has fever. He rests.")])
    assert [example.document for example in examples] == [0, 0, 1, 1]
    assert examples[2].tokens == ("He", "has", "fever", ".")
    assert len(problems) == 1


def test_no_text_no_examples() -> None:
    assert examples_from([]) == ([], [])
    assert examples_from([Document("d", "")]) == ([], [])
