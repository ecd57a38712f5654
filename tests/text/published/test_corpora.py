import re

import pytest

from cases import each
from confide.errors import MissingDataError, SettingsError
from confide.text.files import exists
from confide.text.formats import FORMATS
from confide.text.published.catalogue import CORPORA, VARIABLE, locate
from confide.text.tagging import SCHEMES


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


class TestLocate:
    @pytest.mark.parametrize(
        "written", ["$CONFIDE_DATA/wnut17/a.conll", "${CONFIDE_DATA}/wnut17/a.conll"]
    )
    def test_a_file_that_is_there(self, data, written):
        (data / "wnut17").mkdir()
        (data / "wnut17" / "a.conll").touch()
        assert locate(written) == data / "wnut17" / "a.conll"

    def test_the_folder_itself(self, data):
        assert locate("$CONFIDE_DATA") == data

    def test_other_paths_come_back_as_they_are(self, tmp_path):
        assert locate(tmp_path / "no" / "such.tsv") == tmp_path / "no" / "such.tsv"
        assert str(locate("notes/a.tsv")) == "notes/a.tsv"

    def test_home(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert locate("~/a.tsv") == tmp_path / "a.tsv"

    @each("name", [name for name, one in CORPORA.items() if not one.shipped])
    def test_a_missing_corpus_is_explained(self, data, name):
        corpus = CORPORA[name]
        split = next(iter(corpus.files))
        with pytest.raises(MissingDataError) as caught:
            locate(corpus.path(split))
        said = str(caught.value)
        for part in (corpus.title, corpus.licence, corpus.published, f"$CONFIDE_DATA/{name}"):
            assert part in said
        assert all(file in said for files in corpus.files.values() for file in files)

    @each("value", [None, ""])
    def test_the_variable_is_not_set(self, monkeypatch, value):
        monkeypatch.delenv(VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(MissingDataError, match=r"the variable CONFIDE_DATA is not set.*NCBI"):
            locate("$CONFIDE_DATA/ncbi_disease_ner/train.tsv")
        with pytest.raises(MissingDataError, match="the variable CONFIDE_DATA is not set"):
            locate("$CONFIDE_DATA")

    def test_a_corpus_that_nobody_knows(self, data):
        with pytest.raises(MissingDataError, match=r"'ours/a\.tsv' does not lie under"):
            locate("$CONFIDE_DATA/ours/a.tsv")

    def test_a_name_that_is_nearly_right(self, data):
        with pytest.raises(MissingDataError, match="did you mean 'ncbi_disease_ner'"):
            locate("$CONFIDE_DATA/ncbi_disese_ner/train.tsv")

    def test_another_variable(self):
        with pytest.raises(SettingsError, match=re.escape("expected $CONFIDE_DATA; got $HOME")):
            locate("$HOME/a.tsv")


@each("corpus", CORPORA.values())
def test_an_entry_is_whole(corpus):
    assert corpus.title and corpus.licence and corpus.published and corpus.files
    assert corpus.kind in ("ner", "relations", "vectors")
    assert (corpus.kind == "vectors") == (corpus.format == "")
    assert corpus.format in ("", *FORMATS)
    assert corpus.scheme in ("", *SCHEMES)
    assert list(corpus.types) == sorted(corpus.types)


def test_what_is_shipped_is_there(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    shipped = [one for one in CORPORA.values() if one.shipped]
    assert [one.name for one in shipped] == ["notas_es"]
    for corpus in shipped:
        for parts in corpus.files.values():
            assert all(locate(f"${VARIABLE}/{corpus.name}/{file}").is_file() for file in parts)


@pytest.mark.data
@each("corpus", CORPORA.values())
def test_the_files_are_what_the_entry_says(corpus, corpora):
    if not (corpora / corpus.name).is_dir():
        pytest.skip(f"{corpus.name} is not there")
    for files in corpus.files.values():
        for file in files:
            assert exists(corpora / corpus.name / file)
