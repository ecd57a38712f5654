"""Encoders of every family from a folder: cut exactly, read as transformers reads, trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.kinds.bags.model import BagTrainer
from confide.kinds.bags.site import BagSpec
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.pieces import predict_token_batches, token_batch
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.text.document import Document
from confide.training.batches import Example
from confide.training.encoder import FrozenEncoder, SlowCutter, by_word, load_encoder
from confide.training.optimisers import Optimiser
from confide.training.trainer import FoundSpan, with_entities
from confide.training.weights import arrays, trained
from training.families import FAMILIES, tiny
from training.places import pairs

FORM = EncoderSpec(("drug", "effect"), longest=24, dropout=0.0)
ADAM = Optimiser("adamw", learning_rate=1e-3, clip=1.0)
SENTENCES = [
    ("the", "patient", "took", "aa", "."),
    ("Headache", "and", "PAIN", ",", "then", "bb", "-", "cc"),
    ("the",),
]
_MADE: dict[str, FrozenEncoder] = {}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _MADE.clear()
    return tmp_path_factory.mktemp("families")


def encoder(shelf: Path, family: str) -> FrozenEncoder:
    """The tiny encoder of a family, made once."""
    if family not in _MADE:
        _MADE[family] = load_encoder(str(tiny(family, shelf / family)))
    return _MADE[family]


@each("family", FAMILIES)
def test_logits_are_those_of_transformers_own_head(family: str, shelf: Path) -> None:
    """The first piece of each word, through the head of the family's class for tokens."""
    from transformers import AutoModelForTokenClassification

    own = encoder(shelf, family)
    made = TokenTrainer(own, replace(FORM, longest=own.loaded.most))
    model = made.initial(3)
    text = made.prepared([Example(0, n, words) for n, words in enumerate(SENTENCES)])
    theirs: Any = AutoModelForTokenClassification.from_pretrained(
        own.folder, num_labels=len(made.tags)
    ).eval()
    if hasattr(theirs, "head"):  # ModernBERT's, between its states and the last layer
        theirs.head = torch.nn.Identity()
    with torch.no_grad():
        theirs.classifier.weight.copy_(model.tag.weight)
        theirs.classifier.bias.copy_(model.tag.bias)
    seen = 0
    for batch in predict_token_batches(text):
        mask_BP = torch.ones_like(batch.ids_BP) if batch.mask_BP is None else batch.mask_BP
        with torch.no_grad():
            ours_BLY = model(batch)
            theirs_BPY = theirs(input_ids=batch.ids_BP, attention_mask=mask_BP).logits
        rows_B1 = torch.arange(len(batch))[:, None]
        wanted_BLY = theirs_BPY[rows_B1, batch.firsts_BL]
        for row, length in enumerate(batch.lengths_B.tolist()):
            assert torch.allclose(ours_BLY[row, :length], wanted_BLY[row, :length], atol=1e-5)
            seen += length
    assert seen == sum(map(len, SENTENCES))


@each("family", FAMILIES)
def test_every_kind_with_an_encoder_trains_one_of_each_family(family: str, shelf: Path) -> None:
    own = encoder(shelf, family)
    made = TokenTrainer(own, FORM)
    text = made.prepared([Example(0, n, words) for n, words in enumerate(SENTENCES)])
    encoded = made.annotated(text, [[(0, 1, "drug")], [], []], source={"drug"})
    model: Any = made.initial(1)
    before = arrays(model)
    made.fit(model, encoded, epochs=1, batch_size=2, optimiser=ADAM, seed=1)
    assert moved(before, model)
    assert len(made.find(model, text)) == len(SENTENCES)
    pair = RelationTrainer(own, RelationSpec(("none", "causes"), longest=24))
    examples, model = pair.prepared(pairs()), pair.initial(1)
    before = arrays(model)
    pair.fit(model, pair.annotated(examples), epochs=1, batch_size=6, optimiser=ADAM, seed=1)
    assert moved(before, model) and np.isfinite(pair.row_logits(model, examples)).all()
    bags = BagTrainer(
        BagSpec(["none", "causes"], reader="encoder", longest=24, dropout=0.5), own, "att"
    )
    model = bags.initial(1)
    before = arrays(model)
    groups = [np.arange(0, 6), np.arange(6, 12)]
    how: Any = {"epochs": 1, "batch_size": 2, "optimiser": ADAM, "seed": 1}
    bags.fit(model, bags.annotated(bags.prepared(pairs()), groups), **how)
    assert moved(before, model)


def moved(before: dict[str, Any], model: Any) -> bool:
    """Whether the lowest and the highest layer have moved, all to finite numbers."""
    after = trained(model)
    assert all(np.isfinite(value).all() for value in after.values())
    changed = [not np.array_equal(before[name], value) for name, value in after.items()]
    return sum(changed) > len(changed) / 2


@each("family", FAMILIES)
def test_a_long_document_is_read_in_windows_that_overlap(family: str, shelf: Path) -> None:
    """Every word has one window that owns it, with context on both sides."""
    made = TokenTrainer(encoder(shelf, family), FORM)
    words = ("the", "patient", "took", "aa") * 15
    text = made.prepared([Example(0, 0, words)])
    assert len(text) > 2 and text.lengths_S.max() <= 24
    owned = [n for one in text.windows for n in range(one.own_start, one.own_end)]
    assert owned == list(range(len(words)))
    for before, after in zip(text.windows, text.windows[1:], strict=False):
        assert after.start < before.end
    model = made.initial(1)
    assert made.row_logits(model, text).shape == (len(words), len(made.tags))


def test_a_slow_tokenizer_is_one(shelf: Path) -> None:
    assert isinstance(encoder(shelf, "phobert").loaded.cutter, SlowCutter)


@each("family", FAMILIES)
def test_text_cannot_write_special_pieces(family: str, shelf: Path) -> None:
    loaded = encoder(shelf, family).loaded
    special = {*loaded.before, *loaded.after}
    written = [("[CLS]", "[SEP]", "<s>", "</s>", "a<s>b")]
    found = {n for word in by_word(loaded.cutter, written)[0] for n in word}
    found |= {n for ids in loaded.cutter.texts(["[SEP] </s> x[CLS]y"]) for n in ids}
    assert not found & special


WORD = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc")),
    min_size=1,
    max_size=9,
)
LETTERS = st.text(st.sampled_from("abtheokpinéñß.-%Ω中🙂"), min_size=1, max_size=9)


@pytest.mark.parametrize("family", FAMILIES)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(words=st.lists(st.one_of(WORD, LETTERS), min_size=1, max_size=8), data=st.data())
def test_offsets_come_back_through_every_tokenizer(
    family: str, shelf: Path, words: list[str], data: st.DataObject
) -> None:
    """Text to words, to pieces, to tags, and back: each entity has its own characters again.

    Every piece belongs to one word, in order, and a word's pieces do not depend on its neighbours.
    """
    made = TokenTrainer(encoder(shelf, family), FORM)
    text = " ".join(words)
    document = Document(id="d", text=text)
    (segmented,), examples = _examples(document)
    tokens = [token for example in examples for token in example.tokens]
    cut = by_word(made.encoder.loaded.cutter, [example.tokens for example in examples])
    flat = [pieces for sentence in cut for pieces in sentence]
    assert len(flat) == len(tokens)
    alone = by_word(made.encoder.loaded.cutter, [(token,) for token in tokens])
    assert [one for (one,) in alone] == flat
    spans = [_drawn(data, len(example.tokens)) for example in examples]
    prepared = made.prepared(examples)
    encoded = made.annotated(prepared, spans, source={"drug"})
    found = [list[FoundSpan]() for _ in examples]
    for row, window in enumerate(prepared.windows):
        batch = token_batch(prepared, np.array([row]), annotated=encoded)
        firsts = batch.firsts_BL[0].tolist()
        assert firsts == sorted(set(firsts)) and max(firsts) < batch.ids_BP.shape[1]
        for start, end, name in made.tags.spans(batch.tags_BL[0].numpy()):
            if window.own_start <= start + window.start < window.own_end:
                shift = window.start
                found[window.example].append(FoundSpan(start + shift, end + shift, name, 1.0))
    wanted = with_entities(
        [segmented], examples, [[FoundSpan(*s, 1.0) for s in own] for own in spans]
    )
    (back,) = with_entities([segmented], examples, found)
    if len(prepared) == len(examples):  # an entity over a window's border is cut there
        assert back.entities == wanted[0].entities
    for entity in back.entities:
        assert document.text[entity.start : entity.end].strip() == back.surface(entity)


def _examples(document: Document) -> tuple[list[Document], list[Example]]:
    from confide.training.trainer import bare_sentences

    return bare_sentences([document])


def _drawn(data: st.DataObject, length: int) -> list[tuple[int, int, str]]:
    """Spans without overlap."""
    spans, at = [], 0
    while at < length:
        start = data.draw(st.integers(at, length - 1))
        end = data.draw(st.integers(start + 1, min(length, start + 3)))
        spans.append((start, end, data.draw(st.sampled_from(["drug", "effect"]))))
        at = end + data.draw(st.integers(0, 3))
    return spans


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["top 1", "lora 2 4", "bias", "frozen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_tuned_in_every_way(family: str, tune: str, shelf: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra confide[lora]")
    if tune in FAMILIES[family].lacks:
        pytest.skip("this family has no such part")
    made = RelationTrainer(
        encoder(shelf, family),
        RelationSpec(("none", "causes"), longest=24, dropout=0.0, tuning=tune),
    )
    model, examples = made.initial(1), made.prepared(pairs())
    before = arrays(model)
    examples = made.featured(examples, model, folder=None)
    made.fit(model, made.annotated(examples), epochs=2, batch_size=6, optimiser=ADAM, seed=1)
    after, learnt = arrays(model), trained(model)
    assert learnt.keys() < after.keys()
    changed = {name for name in after if not np.array_equal(before[name], after[name])}
    assert changed <= learnt.keys() and "relation.weight" in changed
    if tune != "frozen":
        assert any(name.startswith("encoder.") for name in changed)
    again = made.initial(2)
    from confide.training.weights import load_weights

    load_weights(again, learnt)  # all else is in the public files
    assert np.allclose(
        made.row_logits(again, made.prepared(pairs())), made.row_logits(model, examples), atol=1e-5
    )
