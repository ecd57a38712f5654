"""Our BART against transformers', and its cache against one pass over the whole sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cases import each
from confide.models.bart import Bart, BartSizes, Prompt, draw

SIZES = BartSizes(
    vocabulary=37,
    dim=24,
    encoder_layers=2,
    decoder_layers=3,
    encoder_heads=4,
    decoder_heads=2,
    encoder_inner=40,
    decoder_inner=36,
    positions=48,
    scaled=True,
    epsilon=1e-5,
)
LENGTHS = (9, 4, 1)
WRITTEN = 21  # more than a fresh cache has room for


def mask_of(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def bart() -> Bart:
    """Large weights, and positions and normalisation that are not trivial."""
    torch.manual_seed(3)
    model = Bart(SIZES)
    draw(model, spread=0.3)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def texts() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids_BP = torch.randint(2, SIZES.vocabulary, (len(LENGTHS), max(LENGTHS)), generator=generator)
    written = torch.randint(2, SIZES.vocabulary, (len(LENGTHS), WRITTEN), generator=generator)
    return ids_BP, mask_of(LENGTHS), written


def prompts_of(layers: int, rows: int | None = None) -> list[Prompt]:
    generator = torch.Generator().manual_seed(7)
    shape = (5, SIZES.dim) if rows is None else (rows, 5, SIZES.dim)
    drawn = [torch.randn(2, *shape, generator=generator) for _ in range(layers)]
    return [(pair[0], pair[1]) for pair in drawn]


@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "not scaled"])
def test_without_prompts_it_is_the_bart_of_transformers(scaled: bool) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.BartConfig(
        vocab_size=SIZES.vocabulary,
        d_model=SIZES.dim,
        encoder_layers=SIZES.encoder_layers,
        decoder_layers=SIZES.decoder_layers,
        encoder_attention_heads=SIZES.encoder_heads,
        decoder_attention_heads=SIZES.decoder_heads,
        encoder_ffn_dim=SIZES.encoder_inner,
        decoder_ffn_dim=SIZES.decoder_inner,
        max_position_embeddings=SIZES.positions,
        scale_embedding=scaled,
        pad_token_id=1,
    )
    theirs = transformers.BartModel(config).eval()
    ours = bart()
    ours.sizes = BartSizes(**{**vars(SIZES), "scaled": scaled})
    found = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {f"{s}.embed_tokens.weight" for s in ("encoder", "decoder")}
    ids_BP, mask_BP, written_BT = texts()
    with torch.no_grad():
        answer = theirs(
            input_ids=ids_BP,
            attention_mask=mask_BP.long(),
            decoder_input_ids=written_BT,
            output_hidden_states=True,
        )
        every = ours.encoder.every_layer(ours.shared(ids_BP) * ours.scale, mask_BP=mask_BP)
        torch.testing.assert_close(
            ours(ids_BP, written_BT, mask_BP=mask_BP),
            answer.last_hidden_state,
            atol=1e-5,
            rtol=1e-5,
        )
    assert len(every) == SIZES.encoder_layers
    for mine, their in zip(every, answer.encoder_hidden_states[1:], strict=True):
        torch.testing.assert_close(mine[mask_BP], their[mask_BP], atol=1e-5, rtol=1e-5)


def test_a_prompt_is_as_in_equation_14() -> None:
    """One text, one layer, one head at a time."""
    attention = bart().encoder.layers[0].self_attn
    states_PD = torch.randn(6, SIZES.dim, generator=torch.Generator().manual_seed(1))
    keys_QD, values_QD = prompts_of(1)[0]
    heads: list[Tensor] = []
    width = SIZES.dim // SIZES.encoder_heads
    for head in range(SIZES.encoder_heads):
        part = slice(head * width, (head + 1) * width)
        asked = attention.q_proj(states_PD)[:, part]
        keys = torch.cat((attention.k_proj(states_PD)[:, part], keys_QD[:, part]))
        values = torch.cat((attention.v_proj(states_PD)[:, part], values_QD[:, part]))
        heads.append(functional.softmax(asked @ keys.t() / math.sqrt(width), 1) @ values)
    expected = attention.out_proj(torch.cat(heads, 1))
    seen = attention.seen(states_PD[None])
    before = attention.before((keys_QD, values_QD), 1)
    both = [torch.cat(parts, 2) for parts in zip(before, seen, strict=True)]
    torch.testing.assert_close(attention(states_PD[None], both)[0], expected, atol=1e-5, rtol=1e-5)


def whole(model: Bart, prompts: bool, rows: bool = False) -> tuple[Tensor, Tensor]:
    """The decoder's states in one pass, and the encoder's."""
    ids_BP, mask_BP, written_BT = texts()
    per_row = len(LENGTHS) if rows else None
    read = prompts_of(SIZES.encoder_layers, per_row) if prompts else None
    wrote = prompts_of(SIZES.decoder_layers, per_row) if prompts else None
    states = model.encoder(model.shared(ids_BP), mask_BP=mask_BP, prompts=read)
    reading = model.decoder.read(states, mask_BP)
    return model.decoder(model.shared(written_BT), reading, prompts=wrote), states


def test_padding_changes_nothing_with_prompts() -> None:
    model = bart()
    ids_BP, _, written_BT = texts()
    states_BTD, read_BPD = whole(model, prompts=True)
    for row, length in enumerate(LENGTHS):
        alone = model.encoder(
            model.shared(ids_BP[row : row + 1, :length]), prompts=prompts_of(SIZES.encoder_layers)
        )
        torch.testing.assert_close(alone[0], read_BPD[row, :length], atol=1e-5, rtol=1e-5)
        reading = model.decoder.read(alone)
        states = model.decoder(
            model.shared(written_BT[row : row + 1]),
            reading,
            prompts=prompts_of(SIZES.decoder_layers),
        )
        torch.testing.assert_close(states[0], states_BTD[row], atol=1e-5, rtol=1e-5)


def test_prompts_matter_and_may_be_each_texts_own() -> None:
    model = bart()
    with_prompts, read = whole(model, prompts=True)
    without, read_without = whole(model, prompts=False)
    assert (with_prompts - without).abs().max() > 0.05
    assert (read - read_without).abs().max() > 0.05
    own = prompts_of(SIZES.decoder_layers, len(LENGTHS))
    ids_BP, mask_BP, written_BT = texts()
    reading = model.decoder.read(model.encoder(model.shared(ids_BP), mask_BP=mask_BP), mask_BP)
    states_BTD = model.decoder(model.shared(written_BT), reading, prompts=own)
    for row in range(len(LENGTHS)):
        shared = [(keys[row], values[row]) for keys, values in own]
        alike = model.decoder(model.shared(written_BT), reading, prompts=shared)
        torch.testing.assert_close(alike[row], states_BTD[row], atol=1e-5, rtol=1e-5)


@each("prompts", [True, False])
@each("pieces", [1, 4])
def test_with_a_cache_the_states_are_those_of_one_pass(prompts: bool, pieces: int) -> None:
    model = bart()
    _, mask_BP, written_BT = texts()
    with torch.no_grad():
        expected_BTD, read_BPD = whole(model, prompts)
        reading = model.decoder.read(read_BPD, mask_BP)
        wrote = prompts_of(SIZES.decoder_layers) if prompts else None
        cache = model.decoder.cache(len(LENGTHS), prompts=wrote)
        tokens_BTD = model.shared(written_BT)
        found = [
            model.decoder(tokens_BTD[:, at : at + pieces], reading, cache=cache)
            for at in range(0, WRITTEN, pieces)
        ]
    assert cache.written == WRITTEN
    torch.testing.assert_close(torch.cat(found, 1), expected_BTD, atol=1e-5, rtol=1e-5)


def test_texts_can_leave_a_cache() -> None:
    model = bart()
    _, mask_BP, written_BT = texts()
    rows_K = torch.tensor([2, 0])
    with torch.no_grad():
        expected_BTD, read_BPD = whole(model, prompts=True)
        reading = model.decoder.read(read_BPD, mask_BP)
        cache = model.decoder.cache(len(LENGTHS), prompts=prompts_of(SIZES.decoder_layers))
        tokens_BTD = model.shared(written_BT)
        model.decoder(tokens_BTD[:, :8], reading, cache=cache)
        cache.keep(rows_K)
        rest = model.decoder(tokens_BTD[rows_K, 8:], reading.keep(rows_K), cache=cache)
    torch.testing.assert_close(rest, expected_BTD[rows_K, 8:], atol=1e-5, rtol=1e-5)


def test_dropout_acts_in_training_only() -> None:
    model = bart()
    ids_BP, mask_BP, written_BT = texts()
    one, same = (model(ids_BP, written_BT, mask_BP=mask_BP) for _ in range(2))
    assert torch.equal(one, same)
    model.train()
    one, other = (model(ids_BP, written_BT, mask_BP=mask_BP) for _ in range(2))
    assert not torch.allclose(one, other)
