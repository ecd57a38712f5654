"""confide within spaCy: found by name, in batches, with confidences and relations."""

from __future__ import annotations

from pathlib import Path

import pytest

import confide
from confide.jobs.loading import Annotated
from confide.text.document import Document, Entity
from contract.learned import learned

TEXT = "The patient took aspirin and then had severe joint pain ."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("spacy"))


def test_spacy_finds_the_component_by_its_name(run: Path) -> None:
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("confide", config={"run": str(run)})
    expected = [(one.text, one.type) for one in confide.load(run)(TEXT).entities]
    assert expected
    for doc in (nlp(TEXT), *nlp.pipe([TEXT] * 3, batch_size=2)):
        assert [(span.text, span.label_) for span in doc.ents] == expected
        assert 0 < doc.spans["confide"][0]._.confide_confidence <= 1
        assert doc._.confide_relations == ()


def test_a_component_without_a_run_says_how(run: Path) -> None:
    with pytest.raises(ValueError, match="name a run"):
        pytest.importorskip("spacy").blank("en").add_pipe("confide")


def test_overlaps_and_parts_of_tokens_fit_spacys_rules() -> None:
    text = "pre_aspirin and aspirin tablets"
    found = Annotated(Document("x", text, (
        Entity("T1", "DRUG", ((4, 11),)), Entity("T2", "DRUG", ((16, 23),)),
        Entity("T3", "FORM", ((16, 31),)),
    )))  # fmt: skip
    doc = found.to_spacy()
    assert [span.text for span in doc.ents] == ["pre_aspirin", "aspirin tablets"]
    assert len(doc.spans["confide"]) == 3
    assert doc.text == text
