"""LightNER's symbols and losses against a slow computation, and what is trained of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cases import each
from confide.kinds.encoder import parted
from confide.kinds.lightner.model import (
    NOTHING,
    Bart,
    Lightner,
    Names,
    Prompt,
    choose_trained,
    split_writing_loss,
    symbol_losses,
    trace,
)
from confide.kinds.lightner.site import LightnerSpec
from kinds.lightner.barts import config_of
from kinds.lightner.lightners import DIM, NAMES, STOP, TYPES, Batch, batch, lightner, only, word

WORDS = (5, 2, 1)
SYMBOLS = ((word(0), word(1), 2, word(4), word(4), 0, STOP), (STOP,), (word(0), word(0), 1, STOP))


def prompts_by_hand(layers: torch.nn.ModuleList, q_QD: Tensor) -> list[Prompt]:
    """Eq. 15, row by row."""
    found = []
    for layer in layers:
        inner, outer = layer.inner.weight, layer.outer.weight
        both = torch.stack([outer @ torch.tanh(inner @ row) for row in q_QD])
        found.append((both[:, :DIM], both[:, DIM:]))
    return found


def by_hand(model: Lightner, text: Batch) -> Tensor:
    """logits_TV of one text, symbol by symbol."""
    bart, rows = model.bart, model.bart.shared.weight
    assert model.prompts is not None
    q_QD = model.prompts.q_QD
    read = prompts_by_hand(model.prompts.encoder, q_QD) or None
    states = bart.read(text.ids_BP, mask_BP=None, prompts=read)
    labels = [torch.stack([rows[piece] for piece in label]).mean(0) for label in NAMES.labels]
    firsts = text.firsts_BL[0].tolist()
    words = [rows[text.ids_BP[0, place]] for place in firsts]
    given = [*labels, rows[NAMES.stop], *words]
    sought = [*labels, rows[NAMES.stop]]
    sought += [(states[0, place] + own) / 2 for place, own in zip(firsts, words, strict=True)]
    symbols = text.symbols_BT[0].tolist()
    inputs = torch.stack([rows[NAMES.start], *(given[symbol] for symbol in symbols[:-1])])
    wrote = prompts_by_hand(model.prompts.decoder, q_QD)
    decoded = bart.write(inputs[None] * bart.scale, bart.reading(states, None), prompts=wrote)
    return torch.stack([torch.stack([state @ one for one in sought]) for state in decoded[0]])


@each("where", ["both", "decoder"])
def test_the_probability_of_each_symbol(where: str) -> None:
    model, given = lightner(where=where), batch(WORDS, SYMBOLS)
    likely_BTV = model(given).softmax(2)
    assert likely_BTV.shape == (3, 7, TYPES + 1 + 5)
    for row, symbols in enumerate(SYMBOLS):
        expected_TV = by_hand(model, only(given, row)).softmax(1)
        found_TV = likely_BTV[row, : len(symbols)]
        symbols_there = expected_TV.shape[1]
        torch.testing.assert_close(found_TV[:, :symbols_there], expected_TV, atol=1e-5, rtol=1e-5)
        assert (found_TV[:, symbols_there:] == 0).all()


def test_losses_are_parted_by_symbol() -> None:
    model, given = lightner(), batch(WORDS, SYMBOLS)
    given.source_BT[0, 3:6] = False
    with torch.no_grad():
        source_B, target_B = split_writing_loss(model, given)
    for row, symbols in enumerate(SYMBOLS):
        log_probs_TV = by_hand(model, only(given, row)).detach().log_softmax(1)
        costs = [-float(log_probs_TV[step, symbol]) for step, symbol in enumerate(symbols)]
        own = [step for step in range(len(symbols)) if bool(given.source_BT[row, step])]
        assert float(source_B[row]) == pytest.approx(sum(costs[step] for step in own), rel=1e-5)
        assert float(target_B[row]) == pytest.approx(
            sum(cost for step, cost in enumerate(costs) if step not in own), rel=1e-5
        )
    assert float(target_B[0]) > 0
    assert target_B[1:].tolist() == [0, 0]


def test_known_states_of_the_encoder_are_taken() -> None:
    model, given = lightner(where="decoder"), batch(WORDS, SYMBOLS)
    states_BPD = model.encoded(given)
    assert torch.equal(model(given), model(replace(given, states_BPD=states_BPD)))
    other = model(replace(given, states_BPD=states_BPD + 0.1))
    assert not torch.allclose(model(given), other)


def test_each_text_may_have_its_own_q() -> None:
    model, given = lightner(), batch(WORDS, SYMBOLS)
    assert model.prompts is not None
    q_BQD = torch.randn(3, 3, DIM, generator=torch.Generator().manual_seed(1))
    logits_BTV = model(given, q_BQD)
    for row in range(3):
        alike = model(given, q_BQD[row])
        torch.testing.assert_close(alike[row], logits_BTV[row], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(given), logits_BTV)
    torch.testing.assert_close(model(given, model.prompts.q_QD), model(given))


def test_a_trace_is_of_the_same_pass() -> None:
    model, given = lightner(), batch(WORDS, SYMBOLS)
    found = trace(model, given)
    source_B, target_B = split_writing_loss(model, given)
    losses_BT = symbol_losses(found.log_probs_BTV, given.symbols_BT)
    torch.testing.assert_close(parted(losses_BT, given.source_BT), (source_B, target_B))
    assert not losses_BT[given.symbols_BT == NOTHING].any()
    assert [layer.shape for layer in found.encoder_layers] == [(*given.ids_BP.shape, DIM)] * 2
    assert found.decoder_BTD.shape == (3, 7, DIM)
    torch.testing.assert_close(found.encoder_layers[-1], model.encoded(given))
    entropy = -(found.log_probs_BTV.exp() * found.log_probs_BTV).sum(2)
    assert torch.isfinite(entropy).all()
    found.encoder_layers[0].sum().backward()
    assert model.prompts is not None
    assert model.prompts.q_QD.grad is not None


def trained(model: Lightner) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_what_is_trained() -> None:
    only_prompts = trained(lightner())
    assert only_prompts == {
        "prompts.q_QD",
        *(
            f"prompts.{side}.{layer}.{part}.weight"
            for side in ("encoder", "decoder")
            for layer in (0, 1)
            for part in ("inner", "outer")
        ),
    }
    decoder = trained(lightner(where="decoder"))
    assert decoder == {name for name in only_prompts if ".encoder." not in name}
    lora = trained(lightner(tune="lora", rank=2))
    assert lora > only_prompts
    added = lora - only_prompts
    assert all(".lora_" in name for name in added)
    assert len(added) == 2 * 2 * (2 + 2 * 2)  # of q and v in each of six attentions
    model = lightner(tune="all")
    assert trained(model) == {name for name, _ in model.named_parameters()}
    assert lightner(prompts=0).prompts is None


def test_only_what_is_trained_moves() -> None:
    model, given = lightner(tune="lora", rank=2), batch(WORDS, SYMBOLS)
    torch.stack(split_writing_loss(model, given)).sum().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == trained(model)


def test_the_share_is_near_the_papers() -> None:
    """7.04 % with N_q = 10, d = 768, h = 400 (Appendix C); ours has no biases."""
    sizes = {"vocab_size": 50265, "d_model": 768, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        sizes |= {
            f"{side}_layers": 6, f"{side}_attention_heads": 12, f"{side}_ffn_dim": 3072,
        }  # fmt: skip
    with torch.device("meta"):
        bart = Bart(config_of(**sizes))
        model = Lightner(bart, Names(((5,),), start=2, stop=2), LightnerSpec([]))
    choose_trained(model)
    assert sum(p.numel() for p in bart.parameters()) == 139_420_416  # facebook/bart-base
    travels = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert travels == 10 * 768 + 12 * (768 * 400 + 400 * 2 * 768)
    share = travels / sum(p.numel() for p in model.parameters())
    assert share == pytest.approx(0.0704, abs=0.004)
