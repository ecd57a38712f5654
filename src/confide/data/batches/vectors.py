"""Word vectors from a word2vec or GloVe text file, keeping only words that a vocabulary knows.

Each site reads the file by itself; with a keyed vocabulary, words are looked up by digest, so that
the rows get the ids that all sites share. The file is streamed twice, so memory holds only what is
kept.

Shapes: K words kept, D numbers of a vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import UNK, How, Vocabulary, normalise
from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Problem
from confide.userfiles import NotAFileError, opened

LONGEST_LINE = 1 << 20
"""Bytes of a line: a word and its numbers."""
MOST_DIMS = 1 << 16
"""Numbers of a vector."""
_CHUNK = 4096  # lines that are looked up at once
_NAMED = 20  # skipped lines that are named one by one


@dataclass(frozen=True, eq=False)
class VectorFile:
    """What a file gave: `rows_KD[i]` belongs to word id `ids_K[i]`; ids ascend, each is there once.

    `lines` counts the words of the file. `skipped` names lines that are not a word and D numbers
    (the first 20 of them, then how many more). `digest` is the file's SHA-256 in hexadecimal.
    """

    dims: int
    ids_K: NDArray[np.int32]
    rows_KD: NDArray[np.float32]
    lines: int
    skipped: tuple[Problem, ...]
    encoding: str
    digest: str


@dataclass
class _Gathered:
    """Rows so far. Of words that share an id, one that is normal already wins, then the first."""

    rows: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    exact: set[int] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    lines: int = 0


def read_vectors(path: Path | str, words: Vocabulary, *, how: How = "none") -> VectorFile:
    """The vectors of all words that `words` knows once they are normalised as `how` says.

    Reads word2vec's and GloVe's text form, with or without a "rows dims" line. A file that is not
    UTF-8 is read as Windows-1252. Raises `MissingDataError` if there is no file; `FormatError` if
    it is a folder, a named pipe or a device, a line is longer than `LONGEST_LINE`, or no line is a
    word and its numbers; `DataError` if the system refuses to read it.
    """
    path = Path(path)
    digest, encoding = _survey(path)
    gathered = _Gathered()
    dims, first_line = _shape(path)
    chunk: list[tuple[int, str, bytes]] = []
    for number, line in _lines(path):
        if number < first_line:
            continue
        parts = line.rsplit(None, dims)
        if len(parts) != dims + 1 or line[:1].isspace():
            gathered.problems.append(_problem(path, number, f"is not a word and {dims} numbers"))
            continue
        try:
            word = parts[0].decode(encoding)
        except UnicodeDecodeError:
            gathered.problems.append(_problem(path, number, f"is not {encoding}"))
            continue
        chunk.append((number, word, line))
        if len(chunk) == _CHUNK:
            _take(gathered, chunk, words, how, path, dims)
            chunk.clear()
    _take(gathered, chunk, words, how, path, dims)
    if not gathered.lines:
        raise FormatError(
            "no line is a word and its vector",
            expected="word2vec or GloVe in their text form",
            where=str(path),
        )
    ids = sorted(gathered.rows)
    return VectorFile(
        dims=dims,
        ids_K=np.array(ids, np.int32),
        rows_KD=np.array([gathered.rows[id] for id in ids], np.float32).reshape(-1, dims),
        lines=gathered.lines,
        skipped=_summary(path, gathered.problems),
        encoding=encoding,
        digest=digest,
    )


def _take(
    gathered: _Gathered,
    chunk: list[tuple[int, str, bytes]],
    words: Vocabulary,
    how: How,
    path: Path,
    dims: int,
) -> None:
    """Parses the numbers of the chunk's wanted lines only."""
    gathered.lines += len(chunk)
    forms = [normalise(word, how) for _, word, _ in chunk]
    for (number, word, line), form, id in zip(chunk, forms, words.ids(forms).tolist(), strict=True):
        exact = word == form
        if id == UNK or (id in gathered.rows and (id in gathered.exact or not exact)):
            continue
        try:
            row = np.array(line.rsplit(None, dims)[1:], np.float32)
        except ValueError:
            row = np.array([np.nan])
        if not np.isfinite(row).all():
            gathered.problems.append(_problem(path, number, "holds something that is no number"))
            continue
        gathered.rows[id] = row
        if exact:
            gathered.exact.add(id)


def _survey(path: Path) -> tuple[str, str]:
    """The file's SHA-256, and its encoding by a vote of the lines that are not plain ASCII."""
    digest = hashlib.sha256()
    utf8 = other = 0
    for _, line in _raw_lines(path):
        digest.update(line)
        if not line.isascii():
            try:
                line.decode("utf-8")
                utf8 += 1
            except UnicodeDecodeError:
                other += 1
    return digest.hexdigest(), "cp1252" if other > utf8 else "utf-8"


def _shape(path: Path) -> tuple[int, int]:
    """How many numbers a vector has, and the number of the first line that holds one."""
    first = next(_lines(path), (1, b""))[1].split()
    if len(first) == 2 and all(part.isdigit() for part in first):
        dims = int(first[1]) if len(first[1]) < 9 else 0
        if not 0 < dims <= MOST_DIMS:
            raise FormatError(
                "the first line states vectors of another size than there are",
                expected=f"1 to {MOST_DIMS:,} numbers",
                got=first[1][:20].decode("ascii"),
                where=f"{path}:1",
            )
        return dims, 2
    if len(first) < 2:
        raise FormatError(
            "the first line is neither `rows dims` nor a word and its vector", where=f"{path}:1"
        )
    return len(first) - 1, 1


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that hold something; only a line feed ends a line."""
    for number, line in _raw_lines(path):
        stripped = line.rstrip(b" \t\r\n")
        if stripped:
            yield number, stripped


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line, and its number; not more of the file than a line is held."""
    try:
        with opened(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    raise FormatError(
                        f"a line of more than {LONGEST_LINE:,} bytes",
                        expected="a word and its vector on each line, as text",
                        where=f"{path}:{number}",
                    )
                yield number, line
    except NotAFileError as error:
        raise FormatError(f"{error.strerror}", where=str(path), fix="name a file") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError("there is no file of word vectors", where=str(path)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be read ({error})", where=str(path)) from error


def _problem(path: Path, number: int, what: str) -> Problem:
    return Problem("vector-line", f"{path}:{number}", f"the line {what}", lost=True)


def _summary(path: Path, problems: list[Problem]) -> tuple[Problem, ...]:
    named = tuple(problems[:_NAMED])
    if len(problems) == len(named):
        return named
    more = f"{len(problems) - len(named)} more lines were left out"
    return (*named, Problem("vector-line", str(path), more, lost=True))
