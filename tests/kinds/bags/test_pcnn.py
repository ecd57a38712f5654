"""The piecewise CNN: the numbers and gradients of one that is written down sentence by sentence."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cases import each
from confide.kinds.bags import model as pcnn
from confide.kinds.bags.model import Pcnn

FAR = 3
# words, words of the head, words of the tail
SENTENCES: list[tuple[list[int], tuple[int, int], tuple[int, int]]] = [
    ([2, 3, 4, 5, 6, 7, 3], (1, 2), (4, 6)),
    ([5, 2, 8, 1, 9, 2, 2, 2, 4, 4, 3], (6, 7), (0, 1)),  # the tail first, far words
    ([2], (0, 1), (0, 1)),  # two empty pieces
    ([7, 8, 9], (0, 3), (1, 2)),  # one in the other; nothing behind
    ([3, 3, 3, 3, 3, 3, 3, 3, 3, 3], (0, 1), (1, 2)),  # places that are alike
]


def position(step: int, span: tuple[int, int]) -> int:
    first, last = span[0], span[1] - 1
    away = step - last if step > last else min(0, step - first)
    return max(-FAR, min(FAR, away)) + FAR + 1


def batch(sentences: Any = SENTENCES) -> Any:
    """As `confide.kinds.bags.batches` says, by hand."""
    words = [word for own, _, _ in sentences for word in own]
    distinct = [0, *sorted(set(words))]
    rows = []
    pieces = []
    for number, (own, head, tail) in enumerate(sentences):
        ends = sorted((head[1], tail[1]))
        for step, word in enumerate(own):
            rows.append([distinct.index(word), position(step, head), position(step, tail)])
            pieces.append(3 * number + sum(step >= end for end in ends))

    class Batch(SimpleNamespace):
        def __len__(self) -> int:
            return len(sentences)

    return Batch(
        distinct_U=torch.tensor(distinct), ids_N3=torch.tensor(rows), pieces_N=torch.tensor(pieces)
    )


def slow(model: Pcnn, sentences: Any = SENTENCES, *, longest: int = 14) -> Tensor:
    """Padded sentences, torch's convolution, a maximum for each piece."""
    found = []
    for own, head, tail in sentences:
        after = longest - len(own)
        words = torch.tensor([*own, *[0] * after])
        heads = torch.tensor([*(position(step, head) for step in range(len(own))), *[0] * after])
        tails = torch.tensor([*(position(step, tail) for step in range(len(own))), *[0] * after])
        values_LD = torch.cat(
            [
                functional.embedding(ids, table.weight, padding_idx=0)
                for ids, table in ((words, model.word), (heads, model.head), (tails, model.tail))
            ],
            1,
        )
        answers_HL = functional.conv1d(
            values_LD.t()[None], model.filters.transpose(1, 2), model.bias, padding=model.width // 2
        )[0]
        cuts = [0, *sorted((head[1], tail[1])), len(own)]
        for start, end in pairwise(cuts):
            inside = answers_HL[:, start:end]
            found.append(
                inside.max(1).values if end > start else torch.zeros(len(inside)).to(inside)
            )
    act = torch.tanh if model.activation == "tanh" else torch.relu
    return act(torch.stack(found)).view(len(sentences), -1)


def made(**changes: Any) -> Pcnn:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"words": 12, "word_dim": 4, "position_dim": 2, "farthest": FAR}
    model = Pcnn(**{**sizes, "filters": 6, **changes}).double()
    with torch.no_grad():
        model.bias.uniform_(-1, 1)
    return model


@each("block", [1, 8, 4096])
@each("changes", [{}, {"activation": "relu"}, {"width": 5}, {"width": 1}])
def test_what_a_padded_one_gives(
    changes: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pcnn, "_BLOCK", block)
    model = made(**changes)
    torch.testing.assert_close(model(batch()), slow(model))
    with torch.no_grad():
        torch.testing.assert_close(model(batch()), slow(model))
        on_a_gpu = model._activated(model.plainly(batch()))
        torch.testing.assert_close(on_a_gpu, slow(model))


@each("block", [1, 8, 4096])
@each("changes", [{}, {"activation": "relu"}, {"width": 5}, {"width": 1}])
def test_gradients_are_those_of_a_padded_one(
    changes: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pcnn, "_BLOCK", block)
    model = made(**changes)
    sentences = SENTENCES[:-1]
    ours_SF, plain_SF = model(batch(sentences)), slow(model, sentences)
    slopes_SF = torch.randn_like(plain_SF)
    parameters = dict(model.named_parameters())
    for name, ours, plain in zip(
        parameters,
        torch.autograd.grad(ours_SF, parameters.values(), slopes_SF),
        torch.autograd.grad(plain_SF, parameters.values(), slopes_SF),
        strict=True,
    ):
        assert plain.abs().sum() > 0
        torch.testing.assert_close(ours, plain, msg=lambda text, name=name: f"{name}: {text}")


def test_many_sentences() -> None:
    torch.manual_seed(3)
    random = torch.Generator().manual_seed(4)

    def draw(most: int) -> int:
        return int(torch.randint(most, (1,), generator=random))

    sentences = []
    for _ in range(300):
        length = 3 + draw(60)
        spans = [(start, start + 1 + draw(2)) for start in (draw(length - 2), draw(length - 2))]
        words = torch.randint(1, 500, (length,), generator=random).tolist()
        sentences.append((words, *spans))
    model = Pcnn(words=500, farthest=FAR, filters=16).double()
    ours, plain = model(batch(sentences)), slow(model, sentences, longest=70)
    torch.testing.assert_close(ours, plain)
    slopes = torch.randn_like(ours)
    for name, one in model.named_parameters():
        (mine,) = torch.autograd.grad(ours, one, slopes, retain_graph=True)
        (theirs,) = torch.autograd.grad(plain, one, slopes, retain_graph=True)
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")


def test_of_places_that_are_alike_one_counts() -> None:
    model = made()
    sentences = SENTENCES[-1:]
    model(batch(sentences)).sum().backward()
    assert model.filters.grad is not None
    mine = model.filters.grad.clone()
    model.zero_grad()
    slow(model, sentences).sum().backward()
    torch.testing.assert_close(mine, model.filters.grad)


def test_the_gradient_of_words_is_of_the_words_of_the_batch() -> None:
    model = made()
    model.word.sparse = True
    model(batch()).sum().backward()
    slope = model.word.weight.grad
    assert slope is not None
    assert slope.is_sparse
    rows = slope._indices()[0].tolist()
    assert rows == sorted({word for own, _, _ in SENTENCES for word in own})
    model.word.sparse = False
    model.zero_grad()
    model(batch()).sum().backward()
    assert isinstance(model.word, nn.Embedding)
    torch.testing.assert_close(slope.to_dense(), model.word.weight.grad)


def test_a_sentence_does_not_depend_on_its_neighbours() -> None:
    model = made()
    with torch.no_grad():
        whole = model(batch())
        for number in range(len(SENTENCES)):
            alone = model(batch(SENTENCES[number : number + 1]))
            torch.testing.assert_close(alone, whole[number : number + 1])
