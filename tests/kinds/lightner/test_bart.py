"""BART against transformers' own model, its prompts, and its cache against one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
from cases import each
from confide.kinds.lightner.model import Bart, Prompt
from kinds.lightner.barts import config_of, drawn

DIM, ENCODER_LAYERS, DECODER_LAYERS, HEADS = 24, 2, 3, 4
SIZES = {
    "vocab_size": 37,
    "d_model": DIM,
    "encoder_layers": ENCODER_LAYERS,
    "decoder_layers": DECODER_LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 48,
}
LENGTHS = (9, 4, 1)
WRITTEN = 21


def mask_of(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def bart(*, dropout: float = 0.0, **other: Any) -> Bart:
    """Large weights, and positions and normalisation that are not trivial."""
    torch.manual_seed(3)
    model = drawn(config_of(**{**SIZES, **other}), spread=0.3, dropout=dropout)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def texts() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = (len(LENGTHS), max(LENGTHS)), (len(LENGTHS), WRITTEN)
    ids_BP, written_BT = (torch.randint(2, 37, shape, generator=generator) for shape in shapes)
    return ids_BP, mask_of(LENGTHS), written_BT


def prompts_of(layers: int, rows: int | None = None) -> list[Prompt]:
    generator = torch.Generator().manual_seed(7)
    shape = (5, DIM) if rows is None else (rows, 5, DIM)
    drawn = [torch.randn(2, *shape, generator=generator) for _ in range(layers)]
    return [(pair[0], pair[1]) for pair in drawn]


@each("scaled", [True, False])
@each("epsilon", [1e-5, 0.1])
def test_without_prompts_it_is_the_bart_of_transformers(scaled: bool, epsilon: float) -> None:
    from transformers import BartModel

    ours = bart(scale_embedding=scaled, epsilon=epsilon)
    theirs = BartModel(config_of(**SIZES, scale_embedding=scaled)).eval()
    found = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {f"{s}.embed_tokens.weight" for s in ("encoder", "decoder")}
    for module in theirs.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = epsilon
    ids_BP, mask_BP, written_BT = texts()
    with torch.no_grad():
        answer = theirs(
            input_ids=ids_BP,
            attention_mask=mask_BP.long(),
            decoder_input_ids=written_BT,
            output_hidden_states=True,
        )
        every = ours.read_by_layer(ids_BP, mask_BP=mask_BP)
        read_BPD = ours.read(ids_BP, mask_BP=mask_BP)
        states_BTD = ours.write(ours.tokens(written_BT), ours.reading(read_BPD, mask_BP))
    torch.testing.assert_close(states_BTD, answer.last_hidden_state, atol=1e-5, rtol=1e-5)
    assert torch.equal(every[-1][mask_BP], read_BPD[mask_BP])
    assert len(every) == ENCODER_LAYERS
    for mine, their in zip(every, answer.encoder_hidden_states[1:], strict=True):
        torch.testing.assert_close(mine[mask_BP], their[mask_BP], atol=1e-5, rtol=1e-5)


def test_a_prompt_is_as_in_equation_14() -> None:
    """One text, one layer, one head at a time."""
    attention = bart().encoder.layers[0].self_attn
    states_PD = torch.randn(6, DIM, generator=torch.Generator().manual_seed(1))
    prompt = keys_QD, values_QD = prompts_of(1)[0]
    heads: list[Tensor] = []
    width = DIM // HEADS
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        asked = attention.q_proj(states_PD)[:, part]
        keys = torch.cat((attention.k_proj(states_PD)[:, part], keys_QD[:, part]))
        values = torch.cat((attention.v_proj(states_PD)[:, part], values_QD[:, part]))
        heads.append(functional.softmax(asked @ keys.t() / math.sqrt(width), 1) @ values)
    expected = attention.out_proj(torch.cat(heads, 1))
    found, _ = attention(states_PD[None], prompts=[prompt])
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)


def whole(model: Bart, prompts: bool) -> tuple[Tensor, Tensor]:
    """The decoder's states in one pass, and the encoder's."""
    ids_BP, mask_BP, written_BT = texts()
    read = prompts_of(ENCODER_LAYERS) if prompts else None
    wrote = prompts_of(DECODER_LAYERS) if prompts else None
    states_BPD = model.read(ids_BP, mask_BP=mask_BP, prompts=read)
    reading = model.reading(states_BPD, mask_BP)
    return model.write(model.tokens(written_BT), reading, prompts=wrote), states_BPD


def test_padding_changes_nothing_with_prompts() -> None:
    model = bart()
    ids_BP, _, written_BT = texts()
    states_BTD, read_BPD = whole(model, prompts=True)
    for row, length in enumerate(LENGTHS):
        alone = model.read(
            ids_BP[row : row + 1, :length], mask_BP=None, prompts=prompts_of(ENCODER_LAYERS)
        )
        torch.testing.assert_close(alone[0], read_BPD[row, :length], atol=1e-5, rtol=1e-5)
        tokens = model.tokens(written_BT[row : row + 1])
        states = model.write(tokens, model.reading(alone, None), prompts=prompts_of(DECODER_LAYERS))
        torch.testing.assert_close(states[0], states_BTD[row], atol=1e-5, rtol=1e-5)


def test_no_place_sees_one_that_lies_ahead() -> None:
    model = bart()
    _, mask_BP, written_BT = texts()
    states_BTD, read_BPD = whole(model, prompts=True)
    part = model.write(
        model.tokens(written_BT[:, :6]),
        model.reading(read_BPD, mask_BP),
        prompts=prompts_of(DECODER_LAYERS),
    )
    torch.testing.assert_close(part, states_BTD[:, :6], atol=1e-5, rtol=1e-5)


def test_prompts_matter_and_may_be_each_texts_own() -> None:
    model = bart()
    with_prompts, read = whole(model, prompts=True)
    without, read_without = whole(model, prompts=False)
    assert (with_prompts - without).abs().max() > 0.05
    assert (read - read_without).abs().max() > 0.05
    own = prompts_of(DECODER_LAYERS, len(LENGTHS))
    _, mask_BP, written_BT = texts()
    reading, tokens = model.reading(read_without, mask_BP), model.tokens(written_BT)
    states_BTD = model.write(tokens, reading, prompts=own)
    for row in range(len(LENGTHS)):
        shared = [(keys[row], values[row]) for keys, values in own]
        alike = model.write(tokens, reading, prompts=shared)
        torch.testing.assert_close(alike[row], states_BTD[row], atol=1e-5, rtol=1e-5)


@each("prompts", [True, False])
@each("pieces", [1, 4])
def test_with_a_cache_the_states_are_those_of_one_pass(prompts: bool, pieces: int) -> None:
    model = bart()
    _, mask_BP, written_BT = texts()
    with torch.no_grad():
        expected_BTD, read_BPD = whole(model, prompts)
        reading, cache = model.reading(read_BPD, mask_BP), model.cache()
        wrote = prompts_of(DECODER_LAYERS) if prompts else None
        tokens_BTD = model.tokens(written_BT)
        found = [
            model.write(tokens_BTD[:, at : at + pieces], reading, prompts=wrote, cache=cache)
            for at in range(0, WRITTEN, pieces)
        ]
    torch.testing.assert_close(torch.cat(found, 1), expected_BTD, atol=1e-5, rtol=1e-5)


def test_texts_can_leave_a_cache() -> None:
    model = bart()
    _, mask_BP, written_BT = texts()
    rows_K, wrote = torch.tensor([2, 0]), prompts_of(DECODER_LAYERS)
    with torch.no_grad():
        expected_BTD, read_BPD = whole(model, prompts=True)
        tokens_BTD, cache = model.tokens(written_BT), model.cache()
        model.write(tokens_BTD[:, :8], model.reading(read_BPD, mask_BP), prompts=wrote, cache=cache)
        cache.batch_select_indices(rows_K)
        left = model.reading(read_BPD[rows_K], mask_BP[rows_K])
        rest = model.write(tokens_BTD[rows_K, 8:], left, prompts=wrote, cache=cache)
    torch.testing.assert_close(rest, expected_BTD[rows_K, 8:], atol=1e-5, rtol=1e-5)


def test_dropout_acts_in_training_only() -> None:
    model = bart(dropout=0.1)
    one, same = (whole(model, prompts=True)[0] for _ in range(2))
    assert torch.equal(one, same)
    model.train()
    one, other = (whole(model, prompts=True)[0] for _ in range(2))
    assert not torch.allclose(one, other)


def test_dropout_is_that_of_the_settings_alone() -> None:
    """The files of a published BART state 0.1 for attention and activations as well."""
    shares = ("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
    model = bart(**dict.fromkeys(shares, 0.5))
    expected, _ = whole(model, prompts=True)
    model.train()
    assert torch.equal(whole(model, prompts=True)[0], expected)
