"""The linear CRF: its emissions are the sums that its formula says, whatever stands beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cases import each
from confide.kinds.tagger.model import Marks, TaggerTrainer, features, rows_read
from confide.training.batches import TagSet
from confide.training.optimisers import Optimiser
from confide.training.tagger import EDGE, WINDOW, LinearSizes, LinearTagger, _factor, batch_of
from confide.training.vocabulary import SPECIALS, ClearVocabulary
from training.corpora import tiny

KEY = b"k" * 16


def made_of(types: tuple[str, ...], key: bytes = KEY, bits: int = 14) -> TaggerTrainer:
    tags = TagSet(types)
    return TaggerTrainer(
        sizes=LinearSizes(types, len(tags.prefixes), bits),
        tags=tags,
        words=ClearVocabulary(()),
        characters=None,
        how="none",
        word_dropout=0.0,
        marks=Marks(key),
    )


def model_of(made: TaggerTrainer, seed: int = 1) -> LinearTagger:
    model = made.initial(seed)
    assert isinstance(model, LinearTagger)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return model


def emissions(made: TaggerTrainer, model: LinearTagger, words: tuple[str, ...]) -> Any:
    """The formula, feature by feature. Shape L × Y."""
    bits, prefixes = model.sizes.bits, model.sizes.prefixes
    found = np.zeros((len(words), len(made.tags)))
    found += (model.crf.linear.weight[:, 0] + model.crf.linear.bias).detach().numpy()

    def marks(place: int) -> list[int]:
        return made.marks.of(words[place]) if 0 <= place < len(words) else [EDGE]

    for at in range(len(words)):
        read = [
            (mark, offset)
            for offset in range(-WINDOW, WINDOW + 1)
            for mark in marks(at + offset)
            if mark % 4 >= abs(offset)
        ]
        for mark, place in read:
            for block, name in enumerate(("", *made.types)):
                hashed = (mark * _factor(place, name)) % 2**64 >> 64 - bits
                row = model.table.weight[hashed + SPECIALS].detach().numpy()
                if block == 0:
                    found[at, 0] += row[0]
                else:
                    first = 1 + (block - 1) * prefixes
                    found[at, first : first + prefixes] += row
    return found


def test_emissions_are_the_sums_of_the_formula_in_any_batch() -> None:
    corpus = tiny(12)
    made = made_of(corpus.tags.types)
    model = model_of(made)
    text = made.prepared(corpus.examples)
    with torch.no_grad():
        found_BLY = model(batch_of(text, np.arange(len(text)))).numpy()
    for row, example in enumerate(corpus.examples):
        wanted_LY = emissions(made, model, example.tokens)
        np.testing.assert_allclose(found_BLY[row, : len(example.tokens)], wanted_LY, atol=1e-3)
    assert all(parameter.eq(0).all() for parameter in made.initial(1).parameters())


def test_another_key_gives_other_marks_of_the_same_reach() -> None:
    ours, theirs = Marks(KEY), Marks(b"other" + KEY)
    for word in ("Aspirin", "§", "IL-12"):
        far = [reach for _, reach in features(word)]
        assert [mark % 4 for mark in ours.of(word)] == [m % 4 for m in theirs.of(word)] == far
        assert not {*ours.of(word)} & {*theirs.of(word)}
        assert all(EDGE < mark < 2**31 for mark in ours.of(word))
    assert "kkk" not in repr(ours)


def test_a_type_has_its_rows_whatever_types_stand_beside_it() -> None:
    corpus = tiny(8)
    both, one = made_of(("Drug", "Effect")), made_of(("Effect",))
    whole, part = model_of(both), model_of(one)
    with torch.no_grad():
        part.table.weight.copy_(whole.table.weight)
        for model in (whole, part):
            model.crf.linear.weight.zero_()
            model.crf.linear.bias.zero_()
        rows = np.arange(len(corpus.examples))
        wide_BLY = whole(batch_of(both.prepared(corpus.examples), rows))
        narrow_BLY = part(batch_of(one.prepared(corpus.examples), rows))
    torch.testing.assert_close(narrow_BLY[..., 1:], wide_BLY[..., 5:])
    torch.testing.assert_close(narrow_BLY[..., 0], wide_BLY[..., 0])


@each("decay", [0.0, 0.1])
def test_rows_that_the_text_does_not_read_stay_as_they_are(decay: float) -> None:
    corpus = tiny(6)
    made = made_of(corpus.tags.types, bits=16)
    model = model_of(made)
    text = made.prepared(corpus.examples)
    encoded = made.annotated(text, [one.spans for one in corpus.examples], source={"Drug"})
    before = model.table.weight.detach().clone()
    optimiser = Optimiser("adagrad", learning_rate=0.1, weight_decay=decay)
    made.fit(model, encoded, epochs=2, batch_size=3, optimiser=optimiser, seed=1)
    moved = (model.table.weight != before).any(1).nonzero()[:, 0].tolist()
    read = rows_read(model, text).tolist()
    assert 0 < len(moved) < len(before) / 2
    assert {*moved} <= {*read}
    if decay:  # every row that is read is at least shrunk
        assert {*moved} == {*read}


def test_the_rows_that_a_sentence_reads_do_not_depend_on_those_beside_it() -> None:
    made = made_of(("A",))
    text = made.prepared(tiny(40, seed=3).examples)
    model = model_of(made)
    each = [set(model.rows(batch_of(text, np.array([n]))).tolist()) for n in range(40)]
    for pair in ([0, 1], [2, 9], [11, 30]):
        both = set(model.rows(batch_of(text, np.array(pair))).tolist())
        assert both == each[pair[0]] | each[pair[1]]
