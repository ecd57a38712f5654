"""Vector files with all the flaws that real ones have."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.errors import FormatError, MissingDataError
from confide.training.vocabulary import ClearVocabulary, KeyedVocabulary, keyed_digest, read_vectors

WORDS = ClearVocabulary(("the", "naïve", "pain", "il-00"))


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_glove_and_word2vec_are_both_read(tmp_path: Path) -> None:
    body = "the 1 2 3\nof 4 5 6\npain -1e-2 .5 0\n"
    for content in (body, "3 3\n" + body, body.replace(" ", "\t")):
        found = read_vectors(written(tmp_path, content), WORDS)
        assert found.dims == 3
        assert found.ids_K.tolist() == [2, 4]
        np.testing.assert_allclose(found.rows_KD, [[1, 2, 3], [-0.01, 0.5, 0]], rtol=1e-6)
        assert found.rows_KD.dtype == np.float32
        assert found.digest == hashlib.sha256((tmp_path / "vectors.txt").read_bytes()).hexdigest()


def test_trailing_spaces_carriage_returns_and_odd_separators(tmp_path: Path) -> None:
    content = "the 1 2 \r\nx\u2028y 3 4 \r\n. . . 5 6\r\n\r\npain 7 8"
    found = read_vectors(written(tmp_path, content), WORDS)
    assert found.ids_K.tolist() == [2, 4]
    assert found.rows_KD.tolist() == [[1, 2], [7, 8]]


def test_windows_1252_is_recognised(tmp_path: Path) -> None:
    content = "the 1 2\nnaïve 3 4\n“ 5 6\n".encode("cp1252")
    found = read_vectors(written(tmp_path, content), WORDS)
    assert found.ids_K.tolist() == [2, 3]


def test_flawed_lines_are_left_out(tmp_path: Path) -> None:
    content = "the 1 2\npain 3 x\nnaïve 4 5\nil-00 nan 1\npain 6 7\nlast 8".encode()
    content += b"\n\xff\xfe 1 2"
    found = read_vectors(written(tmp_path, content), WORDS)
    assert found.ids_K.tolist() == [2, 3, 4]
    assert found.rows_KD.tolist() == [[1, 2], [4, 5], [6, 7]]


def test_the_form_that_needs_no_normalising_wins(tmp_path: Path) -> None:
    content = "IL-12 1 1\nil-00 2 2\nIL-13 3 3\nil-00 4 4\nTHE 5 5\nThe 6 6\n"
    found = read_vectors(written(tmp_path, content), WORDS, how="lower-digits")
    assert found.ids_K.tolist() == [2, 5]
    assert found.rows_KD.tolist() == [[5, 5], [2, 2]]


def test_digests_find_the_same_rows(tmp_path: Path) -> None:
    key = b"s" * 32
    rows = np.array(
        [np.frombuffer(keyed_digest(key, "word", word), np.uint8) for word in WORDS.texts]
    )
    path = written(tmp_path, "the 1 2\nof 3 4\npain 5 6\n")
    clear, secret = (
        read_vectors(path, words) for words in (WORDS, KeyedVocabulary(rows, "word", key))
    )
    assert secret.ids_K.tolist() == clear.ids_K.tolist() == [2, 4]
    assert secret.rows_KD.tolist() == clear.rows_KD.tolist()


def test_a_vocabulary_that_knows_nothing_is_no_error(tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path, "a 1 2\n"), WORDS)
    assert found.rows_KD.shape == (0, 2) and found.ids_K.shape == (0,)


@each("content", [b"", b"\n\n", b"word\n", b"3 4\nthe 1 2\n", b"\x80\x03\x00"])
def test_what_holds_no_vector_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FormatError):
        read_vectors(written(tmp_path, content), WORDS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no file of word vectors"):
        read_vectors(tmp_path / "nowhere.txt", WORDS)


@pytest.mark.data
def test_published_files(corpora: Path) -> None:
    glove = corpora / "glove_subset"
    words = ClearVocabulary(("the", "monday", "–"))
    old = read_vectors(glove / "glove.6B.50d.head2446.txt", words)
    assert (old.dims, len(old.ids_K)) == (50, 3)
    cut = read_vectors(glove / "glove.6B.100d.head2717.txt", words)
    assert cut.dims == 100
    pieces = read_vectors(corpora / "biomed_bpe_vectors" / "just_train_2500_64d", words)
    assert pieces.dims == 64
