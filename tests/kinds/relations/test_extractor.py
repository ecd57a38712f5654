"""A trained relation classifier for who has it: documents in, documents with relations out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import FederationError, MissingDataError
from confide.kinds.relations.batches import NO_RELATION, candidates, predicted_labels
from confide.kinds.relations.site import RelationExtractor
from confide.text.document import Document, Relation
from contract.corpus import tiny
from contract.entries import ENTRIES
from contract.models import folder_of
from contract.relations import documents, encoder
from methods.relation_runs import started
from training.encoders import tiny_bert


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A method and a state that has learnt the corpus."""
    folder = tmp_path_factory.mktemp("learned")
    settings = tiny(
        folder, "method=fedavg-relations", *ENTRIES["fedavg-relations"].learning, sites=2
    )
    method, federation, _ = started(folder, settings)
    state = method.start(federation)
    for number in range(1, settings.rounds + 1):
        state, _ = method.round(state, federation, number)
    return method, state


@pytest.fixture(scope="module")
def extract(learned: tuple[Any, Any]) -> RelationExtractor:
    method, state = learned
    found: RelationExtractor = method.pair.extractor(state, None, key=None)
    return found


GOLD = documents("unseen", "test", 20)
BARE = [replace(one, relations=()) for one in GOLD]


def test_it_finds_relations_with_their_probabilities(extract: RelationExtractor) -> None:
    found = extract(BARE)
    pairs = candidates(GOLD, extract.rules)
    right = [example.relation for example in pairs.examples]
    labels = predicted_labels(pairs, found)
    assert np.mean([a == b for a, b in zip(right, labels, strict=True)]) > 0.9
    for one, given in zip(found, BARE, strict=True):
        assert replace(one, relations=()) == given
        for number, relation in enumerate(one.relations, 1):
            assert (relation.id, relation.level) == (f"R{number}", "entity")
            assert relation.confidence is not None
            assert 1 / 3 < relation.confidence <= 1


def test_relations_that_were_there_make_no_difference(extract: RelationExtractor) -> None:
    odd = [replace(one, relations=(Relation("R9", "odd", "T2", "T1"),)) for one in GOLD]
    assert extract(odd) == extract(GOLD) == extract(BARE)


def test_probabilities_are_those_of_its_classes(extract: RelationExtractor) -> None:
    assert extract.relations == (NO_RELATION, "causes", "eases")
    assert extract.types == ("Drug", "Pain")
    examples = candidates(BARE, extract.rules).examples
    rows = extract.probabilities(examples)
    assert len(rows) == len(examples) == 20
    for row in rows:
        assert tuple(row) == extract.relations
        assert sum(row.values()) == pytest.approx(1)
        assert all(0 <= likely <= 1 for likely in row.values())
    assert extract.probabilities([]) == []


def test_documents_without_pairs_come_back(extract: RelationExtractor) -> None:
    empty = Document("e", "nothing here .")
    assert extract([]) == []
    found = extract([empty, BARE[0], empty])
    assert (found[0], found[2]) == (empty, empty)
    assert found[1] == extract(BARE[:1])[0]


def test_it_needs_the_files_of_its_encoder(learned: tuple[Any, Any], tmp_path: Path) -> None:
    method, state = learned
    copy = shutil.copytree(folder_of(encoder()), tmp_path / "copy")
    moved = method.pair.extractor(state, None, key=None, encoder=str(copy))
    assert moved(BARE) == method.pair.extractor(state, None, key=None)(BARE)
    other = tiny_bert(tmp_path / "other", seed=7, initializer_range=0.1)
    with pytest.raises(FederationError, match="not the files that the model was trained with"):
        method.pair.extractor(state, None, key=None, encoder=str(other))
    with pytest.raises(MissingDataError):
        method.pair.extractor(state, None, key=None, encoder=str(tmp_path / "nowhere"))
