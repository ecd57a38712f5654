"""OMOP CDM 5.4: texts of NOTE by a query, and findings as rows of NOTE_NLP.

`omop` is a small TOML file of a site: a database, and the query that gives an id and a text in each
row. It is read only where the format is stated: no file that is sent to a site opens a database.
`note-nlp` is only written, as CSV or as a new database of SQLite or DuckDB. A map of the site's own
gives types and words their concept ids; anything else has concept 0.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote_plus

from confide.errors import (
    ConfideError,
    DataError,
    FormatError,
    MissingDataError,
    SettingsError,
    printable,
)
from confide.files import Tree, file_text, must_be_files, size_in_words
from confide.text import files, reading, rows
from confide.text.document import ASSERTION, Document, Entity, Problems
from confide.text.formats.notes import IDS, TEXTS, column_of
from confide.text.reading import Format, Options, Output, Reading
from confide.text.rows import clean
from confide.version import __version__

# --- Texts by a query -----------------------------------------------------------------------------

MOST_ROWS = 10_000_000
"""The most rows of a query."""
_PART = 100  # rows at once: each may hold a long text
_WAYS = ("url", "url_env", "url_file")
_SECRET = re.compile(r"(?i)pass|pwd|secret|token|odbc_connect")
_IN_URL = re.compile(r"://[^/?#]*?:(.*)@")
_IN_ODBC = re.compile(r"(?i)(?:pwd|password)\s*=\s*(\{[^}]*\}|[^;]*)")
_NOT_CODE = re.compile(r"'(?:[^']|'')*+'|\"[^\"]*+\"|--[^\n]*+|/\*.*?\*/", re.DOTALL)
_FILES = ("sqlite", "duckdb")


class _Database(NamedTuple):
    """A database's address as SQLAlchemy has it, and what of it no message may hold."""

    url: Any
    secrets: frozenset[str]


def _read(path: Path, options: Options) -> Reading:
    """Read a document for each row of the query; an empty text is left out and reported.

    `options.columns` names the columns of the id and the text.

    Raises:
        SettingsError: the file is not as it should be, or a library is missing.
        MissingDataError: there is no such file or database.
        DataError: the database cannot be read, or there is no text.
        FormatError: there is no column of texts, or a cell is no text.
    """
    tree = reading.read_toml(path)
    query = _query(tree, path)
    database = _database(tree, path)
    problems, stated = Problems(), options.columns or (None, None)
    documents: list[Document] = []
    empty = length = 0
    for number, header, cells in _rows(database, query, path):
        where = f"{path} row {number}"
        if number == 1 and len(set(header)) != len(header):
            raise FormatError("two columns of the query have one name", where=str(path))
        own = column_of(header, stated[0], IDS, where=where, what="id")
        held = column_of(header, stated[1], TEXTS, where=where, what="text")
        if held is None:
            raise FormatError(
                "the query gives no column of texts",
                expected=f"a column called {' or '.join(TEXTS)}",
                got=", ".join(header)[:200],
                where=str(path),
                fix="name it so (SELECT ... AS note_text), or state the columns of id and text",
            )
        length += sum(len(cell) for cell in cells if isinstance(cell, str))
        if number > MOST_ROWS or length > files.MOST_BYTES:
            raise FormatError(
                f"the query gives more than {MOST_ROWS:,} rows,"
                f" or more than {size_in_words(files.MOST_BYTES)} of text",
                where=where,
                fix="divide it: WHERE note_id BETWEEN ... AND ...",
            )
        with options.document(problems, where):
            row = dict(zip(header, cells, strict=True))
            text = _text(row.pop(held), f"{where}, column {held}", problems)
            if not text.strip():
                empty += 1
                continue
            name = _plain(row.pop(own), f"{where}, column {own}") if own else ""
            said = ((key, _plain(cell, f"{where}, column {key}")) for key, cell in row.items())
            attributes = tuple((clean(key), value) for key, value in said if value)
            name = name.strip() or f"{path.stem}:{number}"
            documents.append(Document(name, text, attributes=attributes, source=where))
    if empty:
        what = f"{empty} rows without a text are left out"
        problems.note("empty-document", path, what)
    if not documents:
        raise reading.no_document(path, problems, "the query gives no text")
    return Reading(documents, problems, "omop")


def _text(cell: object, where: str, problems: Problems) -> str:
    """The text in a cell; empty if there is none. Raises FormatError."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise rows.malformed("a cell of the texts", "text", cell, where=where)
    if "\0" in cell:
        raise FormatError("a NUL character in a text", where=where)
    _must_be_short(cell, where)
    return rows.mend_surrogates(cell, where, problems)


def _plain(cell: object, where: str) -> str:
    """Any other cell as a string; empty for none. Raises FormatError for bytes."""
    if isinstance(cell, bytes | bytearray | memoryview):
        raise rows.malformed("a cell", "a string, a number or a date", cell, where=where)
    if cell is None:
        return ""
    whole = rows.whole_number(cell) if isinstance(cell, float) else None
    text = clean(str(cell if whole is None else whole))
    _must_be_short(text, where)
    return text


def _must_be_short(text: str, where: str) -> None:
    if len(text) > files.LONGEST_LINE:
        raise FormatError(
            f"a cell of more than {files.LONGEST_LINE:,} characters",
            got=f"{len(text):,}",
            where=where,
            fix="leave the row out of the query",
        )


def _query(tree: Tree, path: Path) -> str:
    """The query of the file: one statement that reads. Raises SettingsError."""
    odd = next((key for key in tree if key not in (*_WAYS, "query")), None)
    given = [key for key in _WAYS if key in tree]
    strings = all(isinstance(value, str) and value.strip() for value in tree.values())
    if odd is not None or len(given) != 1 or "query" not in tree or not strings:
        raise SettingsError(
            "the file does not say which texts to read",
            expected=f'"query" and one of {", ".join(_WAYS)}, each a string',
            got=printable(", ".join(tree), 100) or "nothing",
            where=str(path),
        )
    query = str(tree["query"])
    code = _NOT_CODE.sub(" ", query).strip().rstrip("; \n")
    if ";" in code or not re.match(r"(?i)(select|with)\b", code):
        raise SettingsError(
            "the query is not one statement that reads",
            expected="SELECT ..., or WITH ... SELECT ...",
            got=printable(code, 40),
            where=str(path),
        )
    return query


def _database(tree: Tree, path: Path) -> _Database:
    """The database of the file.

    Raises:
        SettingsError: the address cannot be used, or has a password that stands in the file.
        MissingDataError: the variable or the file with the address is missing.
    """
    way = next(key for key in _WAYS if key in tree)
    named = str(tree[way])
    address = named
    if way == "url_env":
        address = os.environ.get(named, "").strip()
        if not address:
            what = f"the environment variable {printable(named, 60)} is not set"
            raise MissingDataError(what, expected="the database's address", where=str(path))
    elif way == "url_file":
        try:
            address = file_text(path.parent / named).strip()
        except (OSError, ValueError) as error:
            what = f"the file with the address cannot be read ({type(error).__name__})"
            raise MissingDataError(what, where=str(path.parent / named)) from None
    sqlalchemy = reading.extra("sqlalchemy", "omop", where=path, what="databases")
    url = None
    with suppress(Exception):  # its message may hold the address
        url = sqlalchemy.make_url(address)
    if url is None:
        raise SettingsError(
            "the database's address cannot be used",
            expected="such as sqlite:///cdm.sqlite or postgresql+psycopg://user@host/cdm",
            where=f"{path}, {way}",
        )
    secrets = {url.password or "", *_IN_URL.findall(address)}
    for key, values in url.normalized_query.items():
        if _SECRET.search(key):
            secrets.update(values)
            secrets.update(one for value in values for one in _IN_ODBC.findall(value))
    secrets |= {unquote_plus(one) for one in secrets}
    secrets |= {write(one) for one in secrets for write in (quote, quote_plus)}
    secrets.discard("")
    if secrets and way == "url":
        raise SettingsError(
            "the database's address has a password in it",
            expected="an address without one",
            where=str(path),
            fix="put the address into a file that only you can read, or an environment variable,"
            " and name that: url_file, or url_env",
        )
    return _Database(url, frozenset(secrets))


def _rows(
    database: _Database, query: str, path: Path
) -> Iterator[tuple[int, list[str], Sequence[object]]]:
    """Every row of a query: its number from 1, the names of the columns, and its cells.

    Nothing is written: where the database has them, the connection is one that only reads, and
    nothing is ever committed. Raises DataError, without anything secret.
    """
    sqlalchemy = reading.extra("sqlalchemy", "omop", where=path, what="databases")
    url, connect = _only_reading(database.url, path)
    number, failed, fix = 0, "", None
    try:
        engine = sqlalchemy.create_engine(
            url,
            poolclass=sqlalchemy.NullPool,
            hide_parameters=True,
            connect_args=connect,
            execution_options={"postgresql_readonly": True},
        )
        with engine.connect() as connection:
            how = {"stream_results": True, "no_parameters": True, "yield_per": _PART}
            result = connection.exec_driver_sql(query, execution_options=how)
            header = list(map(str, result.keys()))
            for part in result.partitions(_PART):
                for row in part:
                    number += 1
                    yield number, header, tuple(row)
    except ConfideError:
        raise
    except Exception as error:  # drivers fail in their own ways; outside, nothing refers to it
        failed = str(getattr(error, "orig", None) or error) or type(error).__name__
        if isinstance(error, ImportError | sqlalchemy.exc.NoSuchModuleError):
            fix = "install its driver; the extra omop of confide has that of DuckDB"
    if failed:
        for secret in sorted(database.secrets, key=len, reverse=True):
            failed = failed.replace(secret, "***")
        where = f"{path} after row {number}" if number else str(path)
        what = f"the database cannot be read ({printable(failed, 300)})"
        raise DataError(what, where=where, fix=fix)


def _only_reading(url: Any, path: Path) -> tuple[Any, Tree]:
    """The address of a connection that only reads, and what else it takes.

    The path of a file counts from the folder of the TOML file. Raises MissingDataError, DataError.
    """
    kind = url.get_backend_name()
    if kind not in _FILES:
        return url, {}
    file = path.parent / (url.database or "")
    try:
        must_be_files([file])
    except (OSError, ValueError) as error:
        raise DataError("the database is no file", where=str(file)) from error
    if not file.exists():
        raise MissingDataError("there is no such database", where=str(file), fix="check the path")
    if kind == "duckdb":
        return url.set(database=str(file)), {"read_only": True}
    query = {**url.query, "mode": "ro", "uri": "true"}
    return url.set(database=f"file:{quote(str(file.resolve()))}", query=query), {}


# --- Findings as NOTE_NLP -------------------------------------------------------------------------

COLUMNS = (
    "note_nlp_id", "note_id", "section_concept_id", "snippet", "offset", "lexical_variant",
    "note_nlp_concept_id", "note_nlp_source_concept_id", "nlp_system", "nlp_date", "nlp_datetime",
    "term_exists", "term_temporal", "term_modifiers",
)  # fmt: skip
"""The columns of NOTE_NLP in CDM 5.4."""
_LENGTHS = {
    "snippet": 250, "offset": 50, "lexical_variant": 250, "nlp_system": 250, "term_exists": 1,
    "term_temporal": 50, "term_modifiers": 2000,
}  # fmt: skip
_NEEDED = ("note_nlp_id", "note_id", "lexical_variant", "nlp_date")
_TERM = {
    "present": ("Y", "present"), "historical": ("Y", "past"), "possible": (None, "present"),
    "absent": ("N", None), "hypothetical": ("N", None), "conditional": ("N", None),
    "associated_with_someone_else": ("N", None),
}  # fmt: skip
"""The values of `term_exists` and `term_temporal` by an entity's assertion: whether the patient has
or had it, and when. Of what is possible neither Y nor N is known."""
_SUFFIXES = {".sqlite": "sqlite", ".db": "sqlite", ".duckdb": "duckdb"}
_AT_ONCE = 1000
Concepts = Mapping[str, int]


def _read_nothing(path: Path, options: Options) -> Reading:
    """Raise FormatError: the table has no texts."""
    raise FormatError(
        "NOTE_NLP is only written, never read",
        where=str(path),
        fix="write JSON Lines as well: they hold everything",
    )


def _write(documents: Sequence[Document], out: Output) -> None:
    """Write NOTE_NLP: a new database of SQLite or DuckDB by the ending of the path, else CSV.

    A map has concept ids: `[texts]` by the words of a finding, without regard to case, before
    `[types]` by its type.

    Raises:
        SettingsError: the map gives something that is no concept id, or a library is missing.
        DataError: the file cannot be written, or the database is there already.
    """
    types = _concepts(out.map.get("types", {}))
    texts = {_folded(key): one for key, one in _concepts(out.map.get("texts", {})).items()}
    table = _table(documents, types, texts, out=out)
    if out.path.suffix.lower() in _SUFFIXES:
        _write_database(table, out.path)
    else:
        files.write_parts(out.path, _csv(table))


def _concepts(given: Tree) -> dict[str, int]:
    """A table of a map. Raises SettingsError."""
    for name, number in given.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
            raise SettingsError(
                f"the map has no concept id for {printable(name, 60)}",
                expected="a whole number from 0 to 2,147,483,647",
                got=printable(number, 60),
            )
    return given


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _table(
    documents: Sequence[Document], types: Concepts, texts: Concepts, *, out: Output
) -> Iterator[tuple[object, ...]]:
    """The rows, numbered from 1."""
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    number = 0
    for document in documents:
        note = rows.whole_number(document.id)
        if note is None and document.entities:
            what = f"{rows.quoted(document.id)} is no note_id:"
            what += f" {len(document.entities)} entities have no row"
            out.problems.lost("no-note-id", document.where, what)
        for entity in document.entities if note is not None else ():
            number += 1
            words = document.surface(entity).replace("\0", " ")
            concept = texts.get(_folded(words), types.get(entity.type, 0))
            most = _LENGTHS["snippet"]
            first = max(0, entity.start - max(0, most - len(words)) // 2)
            snippet = " ".join(document.text[first : first + most].replace("\0", " ").split())
            said, whole = _modifiers(entity)
            if len(words) > _LENGTHS["lexical_variant"] or not whole:
                at, what = document.at(entity.start, entity.end), f"{entity.type} {entity.id}"
                out.problems.lost("cut", at, f"{what} is longer than a column: cut")
            yield (
                number, note, 0, clean(snippet), str(entity.start),
                clean(words[: _LENGTHS["lexical_variant"]]), concept, 0, f"confide {__version__}",
                now.date(), now, *_TERM.get(entity.said(ASSERTION), (None, None)), said,
            )  # fmt: skip


def _modifiers(entity: Entity) -> tuple[str, bool]:
    """Type, confidence, concepts and attributes as JSON, and whether they have room."""
    said: Tree = {"type": clean(entity.type).replace("\0", " ")}
    if entity.confidence is not None:
        said["confidence"] = entity.confidence
    short = json.dumps(said, ensure_ascii=False)
    if entity.concepts:
        said["concepts"] = entity.concepts
    if entity.attributes:
        said["attributes"] = entity.attributes
    full = clean(json.dumps(said, ensure_ascii=False))
    most = _LENGTHS["term_modifiers"]
    return (full, True) if len(full) <= most else (short[:most], False)


def _csv(table: Iterator[tuple[object, ...]]) -> Iterator[str]:
    """The parts of the CSV file."""
    page = io.StringIO(newline="")
    writer = csv.writer(page)
    writer.writerow(COLUMNS)
    for row in table:
        writer.writerow(row)
        if page.tell() > _AT_ONCE:
            yield page.getvalue()
            page.seek(0)
            page.truncate()
    yield page.getvalue()


def _write_database(table: Iterator[tuple[object, ...]], path: Path) -> None:
    """Write the table into a new database. Raises DataError, SettingsError."""
    sqlalchemy = reading.extra("sqlalchemy", "omop", where=path, what="databases")
    kind = _SUFFIXES[path.suffix.lower()]
    if kind == "duckdb":
        reading.extra("duckdb_engine", "omop", where=path, what="databases of DuckDB")
    if path.exists():
        raise DataError(
            "there is something already",
            where=str(path),
            fix="name a new database, and load the table into yours from there",
        )
    columns = [
        sqlalchemy.Column(
            name,
            sqlalchemy.String(_LENGTHS[name]) if name in _LENGTHS
            else sqlalchemy.Date() if name == "nlp_date"
            else sqlalchemy.DateTime() if name == "nlp_datetime"
            else sqlalchemy.BigInteger() if name in _NEEDED
            else sqlalchemy.Integer(),
            nullable=name not in _NEEDED,
            primary_key=name == "note_nlp_id",
            autoincrement=False,
        )
        for name in COLUMNS
    ]  # fmt: skip
    note_nlp = sqlalchemy.Table("note_nlp", sqlalchemy.MetaData(), *columns)
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        engine = sqlalchemy.create_engine(
            sqlalchemy.URL.create(kind, database=str(fresh)), poolclass=sqlalchemy.NullPool
        )
        with engine.begin() as connection:
            note_nlp.create(connection)
            while part := [dict(zip(COLUMNS, row, strict=True)) for row in islice(table, _AT_ONCE)]:
                connection.execute(note_nlp.insert(), part)
        fresh.replace(path)
    except (OSError, sqlalchemy.exc.SQLAlchemyError) as error:
        said = printable(getattr(error, "orig", None) or error, 200)
        raise DataError(f"the database cannot be written ({said})", where=str(path)) from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


OMOP = Format("omop", "OMOP's NOTE by a query, in a TOML file", ".toml", _read)
NOTE_NLP = Format(
    "note-nlp",
    "OMOP's NOTE_NLP, CSV or a database",
    ".csv",
    _read_nothing,
    _write,
    reading.Supports(confidences=True, concepts="all", said=True, attributes=True, sentences=True),
    maps=("types", "texts"),
)
