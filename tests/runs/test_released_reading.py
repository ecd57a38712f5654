"""A release cuts text into sentences as its run does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cases import each
from confide.errors import RunError
from confide.runs.loading import READING, open_models, release
from confide.text.document import Document, Sentence
from confide.text.segment import Splitting
from contract.learned import learned

NOTE = [Document("n", "Vive en la Urb. Norte. Toma aspirin.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stated = ("data.language=es", 'data.abbreviations=["Urb."]')
    return learned(tmp_path_factory.mktemp("es"), *stated)


def cut(run: Path) -> list[str]:
    (found,) = open_models(run).split(NOTE)
    return [found.text[one.start : one.end] for one in found.sentences]


@each("site", [None, "site-1"])
def test_what_settings_say_of_sentences_goes_with_a_copy(
    folder: Path, tmp_path: Path, site: str | None
) -> None:
    copy = release(folder, out=tmp_path / "copy", site=site)
    assert cut(copy) == cut(folder) == ["Vive en la Urb. Norte.", "Toma aspirin."]
    (copy / READING).unlink()
    assert open_models(copy).splitting == Splitting()


def test_a_damaged_file_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = release(folder, out=tmp_path / "copy")
    good = json.loads((copy / READING).read_text())
    for wrong in ("", "[]", "{", *(json.dumps(good | one) for one in WRONG)):
        (copy / READING).write_text(wrong)
        with pytest.raises(RunError, match="cuts text into sentences cannot be read"):
            open_models(copy)


WRONG = ({"language": "xx"}, {"language": 1}, {"sentences": "words"}, {"abbreviations": "Urb."})


def test_settings_that_say_nothing_leave_no_file(folder: Path, tmp_path: Path) -> None:
    settings = open_models(folder).splitting
    assert settings != replace(settings, language="auto", abbreviations=())
    plain = learned(tmp_path / "plain", 'data.train_on="file tokens"')
    assert not (release(plain, out=tmp_path / "copy") / READING).exists()


def test_the_tokens_that_a_model_learnt_go_with_a_copy(folder: Path, tmp_path: Path) -> None:
    own = release(folder, out=tmp_path / "own")
    assert open_models(own).splitting.tokens == "own tokens"
    told = Document("n", "x-y", sentences=(Sentence(0, 3, ((0, 3),)),))
    assert open_models(own).split([told])[0].sentences[0].tokens == ((0, 1), (1, 2), (2, 3))
