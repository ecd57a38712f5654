"""Agreement of two annotators, against scikit-learn's kappa and by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cases import each
from confide.serve.correcting import annotator_agreement, kappa
from confide.text.document import Document, Entity


@each("seed", range(5))
def test_kappa_is_that_of_scikit_learn(seed: int) -> None:
    chance = random.Random(seed)
    pairs = [(chance.choice("abc"), chance.choice("aab")) for _ in range(60)]
    from sklearn.metrics import cohen_kappa_score

    assert kappa(pairs) == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)))


def test_kappa_is_not_defined_without_a_choice() -> None:
    assert kappa([]) is None and kappa([("a", "a")] * 3) is None
    assert kappa([("a", "b"), ("b", "a")]) == -1


def _side(*spans: tuple[str, int, int], id: str = "d", text: str = "one two three four"):
    marks = tuple(Entity(f"{n}", kind, ((a, b),)) for n, (kind, a, b) in enumerate(spans))
    return {id: Document(id, text, marks)}


def test_agreement_by_type() -> None:
    first = _side(("X", 0, 3), ("Y", 4, 7))
    second = _side(("X", 0, 3), ("Y", 4, 13), ("Z", 14, 18))
    common, rows = annotator_agreement(first, second)
    by = {row.type: row for row in rows}
    assert common == 1 and list(by) == ["all", "X", "Y", "Z"]
    assert (by["X"].f1, by["X"].kappa) == (1.0, 1.0)
    assert (by["Y"].f1, by["Y"].relaxed) == (0.0, 1.0)
    assert by["Y"].kappa == pytest.approx(0.5)
    assert (by["Z"].f1, by["Z"].kappa, by["Z"].first, by["Z"].second) == (0.0, 0.0, 0, 1)
    assert by["all"].f1 == pytest.approx(2 / 5)


def test_only_what_both_corrected_counts() -> None:
    first = _side(("X", 0, 3)) | _side(("X", 0, 3), id="other")
    second = _side(("X", 0, 3)) | _side(("X", 0, 3), id="third")
    common, rows = annotator_agreement(first, second)
    assert common == 1 and rows[0].first == 1
    changed = _side(("X", 0, 3), text="another text than before")
    assert annotator_agreement(first, changed)[0] == 0


def test_a_whole_text_is_compared_with_the_sentences_of_the_other() -> None:
    text = "one two. three four."
    whole = _side(("X", 0, 3), ("Y", 9, 14), id="t", text=text)
    parts = {}
    for n, (at, end, span) in enumerate(((0, 8, (0, 3)), (9, 20, (0, 5))), 1):
        (one,) = _side(("X", *span), id=f"t.s{n}", text=text[at:end]).values()
        parts[one.id] = replace(one, attributes=(("of", "t"), ("at", str(at))))
    for first, second in ((whole, parts), (parts, whole)):
        common, rows = annotator_agreement(first, second)
        assert common == 2 and rows[0].f1 == 0.5
    # what one of them said of a sentence before is gone with the whole text
    common, rows = annotator_agreement({**parts, **whole}, parts)
    assert common == 2 and rows[0].f1 == 0.5
    assert annotator_agreement({**parts, **whole}, whole)[0] == 1
