"""A model in memory: strings are text, batches change nothing, threads may share it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import confide
from confide.errors import DataError, KeyFileError, SettingsError
from confide.federation.keys import new_key
from confide.jobs.loading import LoadedModel, load
from confide.jobs.predict import predict
from confide.runs.loading import Models
from confide.text.document import Document, Entity, Relation
from contract.learned import learned

TEXT = "The patient took aspirin and then had severe joint pain ."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("loaded"))


@pytest.fixture(scope="module")
def nlp(run: Path) -> LoadedModel:
    return confide.load(run)


def test_a_string_is_text_and_gives_what_predict_gives(
    nlp: LoadedModel, run: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text(TEXT)
    (document,) = predict(run, [note])
    found = nlp(TEXT)
    assert found.document.entities == document.entities
    assert (found.entities[0].type, found.entities[0].text) == ("Drug", "aspirin")
    assert nlp(str(note)).text == str(note)  # the name of a file that is there


def test_lists_and_generators_keep_their_order_whatever_the_batch(nlp: LoadedModel) -> None:
    texts = [TEXT, "", "Codeine was given again today .", TEXT.replace("aspirin", "codeine")]
    each = [nlp(text) for text in texts]
    assert [one.text for one in each] == texts
    alike = [[one.entities for one in found] for found in (
        each, nlp(texts), list(nlp.pipe(iter(texts), batch_size=3)),
    )]  # fmt: skip
    for others in alike[1:]:
        assert [[(e.type, e.start, e.end) for e in one] for one in others] == [
            [(e.type, e.start, e.end) for e in one] for one in alike[0]
        ]


def test_a_generator_is_read_a_batch_at_a_time(nlp: LoadedModel) -> None:
    taken = []

    def stream() -> Iterator[str]:
        for number in range(10):
            taken.append(number)
            yield f"Number {number} ."

    found = nlp.pipe(stream(), batch_size=4)
    next(found)
    assert len(taken) == 4
    with pytest.raises(ValueError, match="at least 1"):
        next(nlp.pipe([TEXT], batch_size=0))


def test_threads_get_their_own_answers(nlp: LoadedModel) -> None:
    texts = [f"{'Very ' * n}old people took aspirin ." for n in range(24)]
    alone = [nlp(text).entities for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: nlp(text).entities, texts)) == alone


def test_what_is_neither_text_nor_document_is_refused(nlp: LoadedModel) -> None:
    with pytest.raises(TypeError, match=r"expected a string.*got PosixPath"):
        nlp(Path("note.txt"))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="got int"):
        nlp([TEXT, 3])  # type: ignore[list-item]


def test_loading_says_what_is_wrong(run: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "other.key")
    with pytest.raises(KeyFileError):
        load(run, key=tmp_path / "other.key")
    with pytest.raises(SettingsError, match="finds entities"):
        load(run, threshold=0.5)


# --- relations ------------------------------------------------------------------------------------


class Linker:
    """Relates the first two entities of each document."""

    finds = "relations"
    types = ("DRUG", "EFFECT")

    class rules:  # noqa: N801
        types = frozenset({("DRUG", "EFFECT")})

    def __call__(self, documents: list[Document]) -> list[Document]:
        return [
            Document(one.id, one.text, one.entities, (
                Relation("R1", "causes", one.entities[0].id, one.entities[1].id, confidence=0.7),
            )) if len(one.entities) > 1 else one
            for one in documents
        ]  # fmt: skip


class Namer:
    """Finds "aspirin" and "rash"."""

    finds = "entities"
    types = ("Drug", "Effect", "Age")
    apart = False

    def __call__(self, documents: list[Document]) -> list[Document]:
        words = (("T1", "Drug", "aspirin"), ("T2", "Effect", "rash"))
        return [
            Document(one.id, one.text, tuple(
                Entity(i, t, ((one.text.index(w), one.text.index(w) + len(w)),), 0.9)
                for i, t, w in words if w in one.text
            ))
            for one in documents
        ]  # fmt: skip


def test_a_chain_is_one_object() -> None:
    nlp = LoadedModel(Models(Namer(), Linker(), {}, {}), names={}, threshold=0.0)  # type: ignore[arg-type]
    assert nlp.finds == ("entities", "relations")
    (relation,) = nlp("aspirin gave a rash").relations
    assert (relation.type, relation.head.text, relation.tail.text) == ("causes", "aspirin", "rash")
    assert relation.head.type == "Drug"  # the recogniser's name, not the relation model's
    assert nlp("nothing here").relations == ()
    sure = LoadedModel(nlp.models, names={}, threshold=0.8)
    assert sure("aspirin gave a rash").relations == ()


def test_a_relation_model_needs_entities() -> None:
    nlp = LoadedModel(Models(None, Linker(), {}, {}), names={}, threshold=0.0)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the text marks none.*ENTITIES\+RELATIONS"):
        nlp("aspirin gave a rash")
    (document,) = Namer()([Document("x", "aspirin gave a rash")])
    assert len(nlp(document).relations) == 1
