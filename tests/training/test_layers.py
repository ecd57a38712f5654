"""Layers against the plain way to compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cases import each
from confide.training.tagger import (
    BiLSTM,
    CharacterBiLSTM,
    CharacterCNN,
    LockedDropout,
    WordCNN,
    mirror,
    start_embedding,
)

LENGTHS = torch.tensor([5, 2, 7, 1])


def packed_twin(ours: BiLSTM, features: int, hidden: int, layers: int) -> nn.LSTM:
    twin = nn.LSTM(features, hidden, num_layers=layers, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for layer in range(layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                for part, end in ((ours.forwards, ""), (ours.backwards, "_reverse")):
                    value = getattr(part[layer], f"{name}_l0")
                    getattr(twin, f"{name}_l{layer}{end}").copy_(value)
    return twin


@each("layers", [1, 2])
def test_bilstm_equals_a_packed_one(layers: int) -> None:
    torch.manual_seed(0)
    ours = BiLSTM(6, 4, layers=layers)
    twin = packed_twin(ours, 6, 4, layers)
    mask = (torch.arange(7) < LENGTHS[:, None])[:, :, None]
    values = torch.randn(4, 7, 6)
    mine, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    packed = pack_padded_sequence(theirs, LENGTHS, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(twin(packed)[0], batch_first=True)
    found = ours(mine, LENGTHS) * mask
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)

    pull = torch.randn(4, 7, 8)
    (found * pull).sum().backward()
    (expected * pull).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        ours.backwards[0].weight_hh_l0.grad, twin.weight_hh_l0_reverse.grad, atol=1e-5, rtol=1e-5
    )


def test_words_are_read_beside_others_of_their_length_to_the_bit() -> None:
    torch.manual_seed(0)
    part = CharacterCNN(40, 30, filters=30, width=3, dropout=0.5).eval()
    lengths = torch.tensor([1, 2, 3, 30, 7, 5, 9, 12, 4, 6, 40, 8] * 20)
    characters = torch.randint(2, 40, (len(lengths), 40))
    characters[torch.arange(40) >= lengths[:, None]] = 0
    for words in (slice(None), slice(0, 12), slice(10, 11), slice(0, 2)):
        given = characters[words][:, : int(lengths[words].max())], lengths[words]
        with torch.no_grad():
            whole = part(*given)
        with torch.inference_mode():
            assert torch.equal(part(*given), whole)


def test_mirror_twice_is_the_identity() -> None:
    values = torch.arange(4 * 7 * 2.0).view(4, 7, 2)
    turned = mirror(values, LENGTHS)
    assert torch.equal(turned[0, :5], values[0, :5].flip(0))
    assert torch.equal(turned[0, 5:], values[0, 5:])
    assert torch.equal(mirror(turned, LENGTHS), values)


def test_mirror_passes_finite_differences() -> None:
    values = torch.randn(4, 7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mirror(x, LENGTHS), [values])


def test_locked_dropout_is_locked_unbiased_and_off_when_predicting() -> None:
    torch.manual_seed(0)
    dropout = LockedDropout(0.25)
    values = torch.ones(200, 3, 50)
    dropped = dropout(values)
    assert torch.equal(dropped[:, :1].expand(-1, 3, -1), dropped)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(dropout.eval()(values), values)


WORDS = [[2, 3, 4], [5], [6, 2], [3, 3, 3, 3, 3]]


def spelled() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(word) for word in WORDS])
    padded = torch.tensor([word + [0] * (5 - len(word)) for word in WORDS])
    return padded, lengths


@each("kind", ["cnn", "bilstm"])
def test_a_word_does_not_depend_on_its_padding(kind: str) -> None:
    torch.manual_seed(0)
    layer = (
        CharacterCNN(9, 5, filters=7, width=3, dropout=0.5)
        if kind == "cnn"
        else CharacterBiLSTM(9, 5, hidden=4, dropout=0.5)
    ).eval()
    together = layer(*spelled())
    assert together.shape == (4, layer.features)
    for row, word in zip(together, WORDS, strict=True):
        alone = layer(torch.tensor([word]), torch.tensor([len(word)]))[0]
        torch.testing.assert_close(row, alone)


def test_the_character_cnn_is_a_maximum_over_windows() -> None:
    torch.manual_seed(0)
    layer = CharacterCNN(9, 5, filters=7, width=3, dropout=0.0)
    word = layer.embedding(torch.tensor([0, 2, 3, 4, 0]))
    windows = [word[i : i + 3].T for i in range(3)]
    answers = [(layer.convolution.weight * window).sum((1, 2)) for window in windows]
    expected = torch.stack(answers).amax(0) + layer.convolution.bias
    found = layer(torch.tensor([[2, 3, 4]]), torch.tensor([3]))[0]
    torch.testing.assert_close(found, expected)


def test_the_character_bilstm_reads_both_ends() -> None:
    torch.manual_seed(0)
    layer = CharacterBiLSTM(9, 5, hidden=4, dropout=0.0)
    values = layer.embedding(torch.tensor([[2, 3, 4]]))
    _, (ahead, _) = layer.bilstm.forwards[0](values)
    _, (back, _) = layer.bilstm.backwards[0](values.flip(1))
    expected = torch.cat([ahead[0], back[0]], 1)
    torch.testing.assert_close(layer(torch.tensor([[2, 3, 4]]), torch.tensor([3])), expected)


def test_weights_begin_where_they_should() -> None:
    table = start_embedding(50, 12)
    assert not table.weight[0].any()
    assert 0.4 < table.weight.abs().max() <= 0.5
    lstm = BiLSTM(3, 4).forwards[0]
    assert lstm.bias_ih_l0.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    assert not lstm.bias_hh_l0.any()


def test_the_word_cnn_is_a_sum_over_neighbours() -> None:
    """The oracle adds up each width's window by hand; nothing outside a sentence counts."""
    torch.manual_seed(0)
    layer = WordCNN(3, filters=2, widths=(1, 3, 5))
    values = torch.randn(4, 7, 3)
    found = layer(values, LENGTHS)
    assert found.shape == (4, 7, 6) and layer.features == 6
    for row, length in enumerate(LENGTHS.tolist()):
        for place in range(length):
            expected = []
            for convolution in layer.convolutions:
                half = convolution.kernel_size[0] // 2  # type: ignore[index, operator]
                total = convolution.bias.clone()  # type: ignore[operator, union-attr]
                for step in range(-half, half + 1):
                    if 0 <= place + step < length:
                        total += convolution.weight[:, :, step + half] @ values[row, place + step]  # type: ignore[index]
                expected.append(total)
            torch.testing.assert_close(found[row, place], torch.relu(torch.cat(expected)))
