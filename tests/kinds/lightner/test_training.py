"""LightNER out of a tiny BART: learns, finds, splits its loss, and gives gradients by q."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import DataError, SettingsError
from confide.kinds.lightner.model import (
    Bart,
    EncodedLightner,
    Lightner,
    LightnerTrainer,
    PointerBatch,
    PretrainedBart,
    load_bart,
    split_writing_loss,
    trace,
)
from confide.kinds.lightner.site import LightnerSpec
from confide.training.batches import Example
from confide.training.optimisers import Optimiser
from confide.training.trainer import FoundSpan
from confide.training.weights import arrays
from training.barts import PLACES, bart_folder
from training.corpora import sentence

FORM = LightnerSpec(types=("Drug", "Effect"), prompts=3, hidden=8, longest=PLACES, dropout=0.0)
WORDS = ("aa", "the", "bb", "took", "cc", "pain", "head", ".")


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> PretrainedBart:
    return load_bart(str(bart_folder(tmp_path_factory.mktemp("bart") / "model")))


def examples(count: int) -> list[Example]:
    """After "took" comes a drug, of one or two words; "pain" is an effect."""
    random = np.random.default_rng(0)
    found = []
    for number in range(count):
        before = random.choice(("aa", "the", "bb"), random.integers(1, 4)).tolist()
        drug = random.choice(("cc", "head"), random.integers(1, 3)).tolist()
        tokens = [*before, "took", *drug, "."]
        spans = [(len(before) + 1, len(before) + 1 + len(drug), "Drug")]
        if number % 2:
            spans.append((len(tokens), len(tokens) + 1, "Effect"))
            tokens += ["pain", "."]
        found.append(Example(0, number, tuple(tokens), tuple(spans)))
    return found


EXAMPLES = examples(40)


def trainer(bart: PretrainedBart, **changes: Any) -> LightnerTrainer:
    return LightnerTrainer(bart, replace(FORM, **changes))


def annotated(
    made: LightnerTrainer, source: frozenset[str] = frozenset(("Drug",)), count: int = 40
) -> EncodedLightner:
    some = EXAMPLES[:count]
    return made.annotated(made.prepared(some), [one.spans for one in some], source=source)


def fitted(made: LightnerTrainer, model: Any, encoded: EncodedLightner, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "weights_S": None,
        "epochs": 1,
        "batch_size": 4,
        "optimiser": Optimiser("adamw", learning_rate=3e-3),
        "seed": 1,
    }
    return made.fit(model, encoded, **settings | changes)


def test_it_is_a_kind_of_model(bart: PretrainedBart) -> None:
    made = trainer(bart)
    assert made.types == ("Drug", "Effect")


def test_a_rule_is_learnt(bart: PretrainedBart) -> None:
    made = trainer(bart, tune="all")
    model, encoded = made.initial(1), annotated(made)
    report = fitted(made, model, encoded, epochs=12)
    assert report.sentences == 12 * 40
    assert not model.training
    for constrained in (True, False):
        found = trainer(bart, tune="all", constrained=constrained).find(model, encoded.text)
        right = sum(
            [span[:3] for span in spans] == list(one.spans)
            for spans, one in zip(found, EXAMPLES, strict=True)
        )
        assert right >= 38
        chances = [span.confidence for spans in found for span in spans]
        assert all(0 < chance <= 1 for chance in chances)
        assert np.mean(chances) > 0.7
        assert all(type(span) is FoundSpan for spans in found for span in spans)


@pytest.mark.parametrize(
    "changes", [{}, {"where": "decoder"}, {"tune": "lora", "rank": 2}], ids=["both", "decoder", "r"]
)
def test_prompts_learn_and_all_else_stays(bart: PretrainedBart, changes: dict[str, Any]) -> None:
    made = trainer(bart, **changes)
    model, encoded = made.initial(1), annotated(made)
    before = arrays(model)
    first = fitted(made, model, encoded)
    last = fitted(made, model, encoded, epochs=6, optimiser=Optimiser("adam", learning_rate=1e-2))
    assert last.loss < 0.8 * first.loss
    moved = {
        name for name, value in arrays(model).items() if not np.array_equal(value, before[name])
    }
    assert moved == {name for name, p in model.named_parameters() if p.requires_grad}
    assert "prompts.q_QD" in moved


def test_the_seed_draws_the_prompts_and_bart_is_shared(bart: PretrainedBart) -> None:
    made = trainer(bart)
    one, same, other = (made.initial(seed) for seed in (1, 1, 2))
    ours, theirs = arrays(one), arrays(other)
    assert all(np.array_equal(value, arrays(same)[name]) for name, value in ours.items())
    differ = {name for name in ours if not np.array_equal(ours[name], theirs[name])}
    assert differ == {name for name in ours if name.startswith("prompts.")}
    table = bart.loaded.model.shared.weight
    assert one.bart.shared.weight.data_ptr() == table.data_ptr()
    assert one.bart.shared.weight is not table
    whole = trainer(bart, tune="all").initial(1)
    assert whole.bart.shared.weight.data_ptr() != table.data_ptr()
    assert all(p.requires_grad for p in whole.parameters())
    assert not bart.loaded.model.training
    assert not any(p.requires_grad for p in bart.loaded.model.parameters())


@each("changes", [{}, {"tune": "all"}, {"where": "decoder"}])
def test_the_same_seed_trains_the_same_bits(bart: PretrainedBart, changes: dict[str, Any]) -> None:
    made = trainer(bart, dropout=0.1, **changes)
    found = []
    for seed in (1, 1, 2):
        model = made.initial(1)
        report = fitted(made, model, annotated(made, count=12), seed=seed)
        found.append((report.loss, arrays(model)))
    one, same, other = found
    assert one[0] == same[0] != other[0]
    assert all(np.array_equal(one[1][name], same[1][name]) for name in one[1])


def test_weights_are_of_the_source_loss(bart: PretrainedBart) -> None:
    """One step of plain gradient descent, against the losses written out."""
    made = trainer(bart)
    encoded = annotated(made, count=6)
    weights_S = np.array([0.0, 2.0, 1.0, -1.0, 0.5, 3.0], np.float32)
    model, twin = made.initial(1), made.initial(1)
    fitted(
        made,
        model,
        encoded,
        weights_S=weights_S,
        batch_size=6,
        optimiser=Optimiser("sgd", learning_rate=0.1, momentum=0.0, clip=0.0),
    )
    source_B, target_B = split_writing_loss(
        twin, made.batch(twin, encoded.text, np.arange(6), own=encoded)
    )
    assert target_B[1].item() > 0
    (torch.from_numpy(weights_S) * source_B + target_B).mean().backward()
    assert twin.prompts is not None
    assert model.prompts is not None
    q_QD, slope_QD = twin.prompts.q_QD, twin.prompts.q_QD.grad
    assert slope_QD is not None
    torch.testing.assert_close(
        model.prompts.q_QD.detach(), (q_QD - 0.1 * slope_QD).detach(), atol=1e-5, rtol=1e-4
    )


# --- gradients by q -------------------------------------------------------------------------


def one_by_one(
    made: LightnerTrainer, model: Lightner, encoded: EncodedLightner
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A sentence at a time, and a pass for each loss."""
    assert model.prompts is not None
    found: tuple[list[Any], list[Any]] = ([], [])
    for row in range(len(encoded)):
        for part, slopes in enumerate(found):
            loss = split_writing_loss(
                model, made.batch(model, encoded.text, np.array([row]), own=encoded)
            )[part]
            model.zero_grad()
            loss.sum().backward()
            slope = model.prompts.q_QD.grad
            assert slope is not None
            slopes.append(slope.flatten().clone().numpy())
    return np.stack(found[0]), np.stack(found[1])


@each("where", ["both", "decoder"])
def test_slopes_are_those_of_a_loop(bart: PretrainedBart, where: str) -> None:
    made = trainer(bart, where=where, dropout=0.5)
    model, encoded = made.initial(1), annotated(made, count=9)
    before = arrays(model)
    model.train()
    found = made.row_gradients(model, encoded)
    assert model.training
    assert all(np.array_equal(value, before[name]) for name, value in arrays(model).items())
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        n for n, p in made.initial(1).named_parameters() if p.requires_grad
    }
    source_SG, target_SG = one_by_one(made, model.eval(), encoded)
    assert found.source_SG.dtype == np.float32
    np.testing.assert_allclose(found.source_SG, source_SG, atol=1e-5, rtol=1e-3)
    np.testing.assert_allclose(found.target_SG, target_SG, atol=1e-5, rtol=1e-3)
    assert (np.abs(found.target_SG).sum(1) > 0).tolist() == [n % 2 == 1 for n in range(9)]
    assert (np.abs(found.source_SG).sum(1) > 0).all()  # stop at least


def test_without_prompts_there_is_nothing_to_compare(bart: PretrainedBart) -> None:
    made = trainer(bart, prompts=0, tune="lora")
    with pytest.raises(SettingsError, match="no q"):
        made.row_gradients(made.initial(1), annotated(made, count=2))


# --- the encoder's states -------------------------------------------------------------------


def test_states_that_never_change_are_kept(bart: PretrainedBart) -> None:
    made = trainer(bart, where="decoder")
    model, encoded = made.initial(1), annotated(made)
    expected = made.find(model, encoded.text)
    (kept_ND,) = encoded.text.kept
    assert kept_ND is not None
    fitted(made, model, encoded, optimiser=Optimiser("adam", learning_rate=1e-2))
    assert encoded.text.kept[0] is kept_ND and len(encoded.text.kept) == 1
    batch = made.batch(model, encoded.text, np.array([3, 0, 7]), own=encoded)
    assert batch.states_BPD is not None
    fresh = replace(batch, states_BPD=None)
    with torch.no_grad():
        states_BPD = model.encoded(fresh)
    pieces_BP = torch.ones_like(batch.ids_BP) if batch.mask_BP is None else batch.mask_BP
    inside_BP = pieces_BP.bool()
    torch.testing.assert_close(
        batch.states_BPD[inside_BP], states_BPD[inside_BP], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(model(batch), model(fresh), atol=1e-4, rtol=1e-4)
    assert made.find(model, encoded.text) != expected  # it is the decoder that has learnt


@each("changes", [{}, {"where": "decoder", "tune": "all"}])
def test_states_that_may_change_are_not_kept(bart: PretrainedBart, changes: dict[str, Any]) -> None:
    made = trainer(bart, **changes)
    model, encoded = made.initial(1), annotated(made, count=4)
    made.find(model, encoded.text)
    fitted(made, model, encoded)
    assert not encoded.text.kept
    assert made.batch(model, encoded.text, np.array([0]), own=encoded).states_BPD is None


def test_an_adversary_can_look_inside(bart: PretrainedBart) -> None:
    made = trainer(bart, where="decoder")
    model, encoded = made.initial(1), annotated(made, count=4)
    batch: PointerBatch = made.batch(model, encoded.text, np.arange(4), own=encoded)
    found = trace(model, batch)
    assert len(found.encoder_layers) == bart.loaded.model.config.encoder_layers
    assert found.log_probs_BTV.shape[:2] == batch.symbols_BT.shape
    losses = split_writing_loss(model, batch)
    assert torch.isfinite(torch.stack(losses)).all()


# --- text -----------------------------------------------------------------------------------


def test_a_text_is_cut_once_for_all_annotations(
    bart: PretrainedBart, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(bart)
    text = made.prepared(EXAMPLES[:3])
    monkeypatch.setattr(type(bart.loaded), "cut", None)
    spans: Sequence[Sequence[Any]] = ([(0, 1, "Drug")], [], [(0, 2, "Effect")])
    for source in (frozenset(("Drug",)), frozenset(("Effect",))):
        encoded = made.annotated(text, spans, source=source)
        assert encoded.text is text
        assert len(encoded) == 3
    with pytest.raises(DataError, match="outside the declared set"):
        made.annotated(text, [[(0, 1, "Gene")], [], []], source=frozenset())


def test_long_sentences_and_strange_words(bart: PretrainedBart) -> None:
    """Windows are put together again; nothing of a text breaks it."""
    made = trainer(bart, longest=20)
    model = made.initial(1)
    texts = [("the",) * 50, ("\ufeff", "\ud800", "[SEP]"), ("a" * 500, "b"), ("\x00",)]
    rows = [Example(0, n, words) for n, words in enumerate(texts)]
    text = made.prepared(rows)
    assert len(text) > len(texts)
    found = made.find(model, text)
    assert len(found) == len(texts)
    for spans, words in zip(found, texts, strict=True):
        borders = [place for span in spans for place in span[:2]]
        assert borders == sorted(borders)
        assert all(span.start < span.end <= len(words) for span in spans)
    spans_of = [[(0, 50, "Drug")], [(0, 1, "Effect")], [], []]
    encoded = made.annotated(text, spans_of, source={"Drug"})
    assert fitted(made, model, encoded).sentences == len(text)
    assert made.find(model, made.prepared([])) == []
    with pytest.raises(DataError, match="no sentence"):
        fitted(made, model, made.annotated(made.prepared([]), [], source={"Drug"}))
    assert (
        len(
            made.row_gradients(model, made.annotated(made.prepared([]), [], source=set())).source_SG
        )
        == 0
    )


def test_what_is_found_does_not_depend_on_the_others(bart: PretrainedBart) -> None:
    made = trainer(bart)
    model = made.initial(3)
    some = [sentence(np.random.default_rng(n), n) for n in range(6)]
    together = made.find(model, made.prepared(some))
    alone = [made.find(model, made.prepared([one]))[0] for one in some]
    assert [[s[:3] for s in one] for one in together] == [[s[:3] for s in one] for one in alone]
    assert any(together)


# --- labels ---------------------------------------------------------------------------------


def test_labels_are_made_of_the_words_of_a_name(bart: PretrainedBart) -> None:
    names = ("adverse-effect", "side_effect", "the/patient", "pains")
    made = trainer(bart, types=names)
    loaded = bart.loaded
    whole = [
        loaded.cut([name.replace("-", " ").replace("_", " ").replace("/", " ").split()])[0]
        for name in names
    ]
    assert made.names.labels == tuple(tuple(p for word in words for p in word) for words in whole)
    assert (made.names.start, made.names.stop) == (2, 3)
    encoded = made.annotated(made.prepared(EXAMPLES[:2]), [[(0, 1, "pains")], []], source=set())
    assert np.isfinite(made.row_gradients(made.initial(1), encoded).target_SG).all()


@each(
    ("types", "what"),
    [
        (("the-pain", "The Pain"), "same pieces.*'the-pain' and 'The Pain'"),
        (("the_pain", "pain_the"), "cannot tell"),  # the same mean
        (("pain", "pain-pain"), "cannot tell"),
        (("pain", "--"), "has no word"),
    ],
)
def test_labels_that_do_not_tell_types_apart(
    bart: PretrainedBart, types: tuple[str, ...], what: str
) -> None:
    with pytest.raises(SettingsError, match=what):
        trainer(bart, types=types).initial(1)


def test_too_long_a_window(bart: PretrainedBart) -> None:
    with pytest.raises(SettingsError, match="that many pieces"):
        trainer(bart, longest=PLACES + 1).prepared(EXAMPLES[:1])


def test_bytes_for_pieces_learn_too(tmp_path: Path) -> None:
    made = trainer(load_bart(str(bart_folder(tmp_path / "bart", bytes=True))), tune="all")
    model, encoded = made.initial(1), annotated(made, count=12)
    first = fitted(made, model, encoded)
    assert fitted(made, model, encoded, epochs=4).loss < 0.7 * first.loss
    assert isinstance(model.bart, Bart)
