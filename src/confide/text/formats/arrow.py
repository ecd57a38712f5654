"""Parquet files and Arrow streams to rows, under a limit: a small file may hold a huge one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confide.errors import DataError, FormatError
from confide.text.extras import extra
from confide.text.files import read_bytes
from confide.text.formats.folders import ARROW_FOLDER
from confide.text.formats.hub import names_of
from confide.text.unpacking import MOST_BYTES
from confide.userfiles import Tree, json_of, size_in_words, text_of

_FREE, _MOST_TIMES = 1 << 23, 64
_BATCH = 1000
_MOST_PARTS = 4096


def rows_and_names(path: Path) -> tuple[Iterator[tuple[str, str, Tree]], dict[str, list[str]]]:
    """The rows of a file or of a saved split, and the names of the tags in its columns.

    Raises:
        SettingsError: pyarrow is not installed.
        FormatError: a file is damaged, or holds far more than it weighs.
        DataError: a part of a saved split is missing.
    """
    if not path.is_dir():
        raw = read_bytes(path)
        return _rows(raw, path), _named(_features_in(raw, path))
    info = _object(path / "dataset_info.json")
    features = info.get("features")
    parts = _object(path / ARROW_FOLDER).get("_data_files")
    held = [part.get("filename") for part in parts or () if isinstance(part, dict)]
    names = [name for name in held if isinstance(name, str) and _plain(name)]
    if not names or len(names) > _MOST_PARTS or len(names) != len(held):
        raise FormatError(
            "a saved dataset without files", expected="_data_files", where=str(path / ARROW_FOLDER)
        )

    def every() -> Iterator[tuple[str, str, Tree]]:
        for name in names:
            yield from _rows(read_bytes(path / name), path / name)

    return every(), _named(features)


def _plain(name: str) -> bool:
    """Whether this is the name of a file in the folder, not a way out of it."""
    return Path(name).name == name and name not in ("", "..")


def _object(file: Path) -> Tree:
    try:
        found = json_of(text_of(file))
    except (OSError, ValueError) as error:
        raise DataError(f"a saved dataset is damaged ({error})", where=str(file)) from error
    if not isinstance(found, dict):
        raise FormatError("a saved dataset is damaged", expected="an object", where=str(file))
    return found


def _named(features: object) -> dict[str, list[str]]:
    return names_of(features) if isinstance(features, dict) else {}


def _arrow(path: Path) -> Any:
    return extra("pyarrow", "datasets", where=path, what="parquet and Arrow files")


def _features_in(raw: bytes, path: Path) -> object:
    """The features that `datasets` writes into a file's schema."""
    schema = _opened(raw, path)[0]
    held = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json_of(held) if held else {}
    except ValueError:
        return {}
    info = found.get("info") if isinstance(found, dict) else None
    return info.get("features") if isinstance(info, dict) else {}


def _opened(raw: bytes, path: Path) -> tuple[Any, Iterator[Any]]:
    """The schema of a file and its batches. Raises FormatError."""
    arrow = _arrow(path)
    try:
        if raw.startswith(b"PAR1"):
            parquet = extra("pyarrow.parquet", "datasets", where=path, what="parquet files")
            file = parquet.ParquetFile(io.BytesIO(raw))
            return file.schema_arrow, file.iter_batches(batch_size=_BATCH)
        ipc = extra("pyarrow.ipc", "datasets", where=path, what="Arrow files")
        if raw.startswith(b"ARROW1"):
            whole = ipc.open_file(arrow.py_buffer(raw))
            return whole.schema, (whole.get_batch(n) for n in range(whole.num_record_batches))
        stream = ipc.open_stream(arrow.py_buffer(raw))
        return stream.schema, iter(stream)
    except Exception as error:  # a damaged file fails anywhere in arrow
        raise _damaged(error, path) from error


def _damaged(error: Exception, path: Path) -> FormatError:
    return FormatError(
        f"the parquet or Arrow file is damaged ({type(error).__name__})",
        where=str(path),
        fix="write it again",
    )


def _rows(raw: bytes, path: Path) -> Iterator[tuple[str, str, Tree]]:
    """Every row: its place, a name for it, and its values."""
    _, batches = _opened(raw, path)
    most = min(MOST_BYTES, max(_FREE, _MOST_TIMES * len(raw)))
    held = number = 0
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
            held += batch.nbytes + 64 * batch.num_rows
            rows = batch.to_pylist() if held <= most else []
        except Exception as error:  # as above
            raise _damaged(error, path) from error
        if held > most:
            raise FormatError(
                f"the file of {len(raw):,} bytes holds more than {size_in_words(most)}",
                expected=f"at most {_MOST_TIMES} times its own size",
                where=str(path),
                fix="write it in several files",
            )
        for row in rows:
            number += 1
            yield f"{path}#{number}", f"{path.stem}:{number}", row
