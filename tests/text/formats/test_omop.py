"""OMOP: NOTE by a query, NOTE_NLP out, and no password in anything that is said."""

from __future__ import annotations

import csv
import json
import logging
import sqlite3
import traceback
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cases import each
from confide.cli.verbs import app
from confide.errors import ConfideError, DataError, FormatError, MissingDataError, SettingsError
from confide.text import files
from confide.text.document import Document, Entity
from confide.text.formats import Options, detect, omop, read, write
from text.generated import kinds, put

pytest.importorskip("sqlalchemy")
PASSWORD = "c@nary/7#pass word"
QUOTED = "c%40nary%2F7%23pass+word"
NOTES = [
    (11, "Rash after\naspirin 😀, 81 mg.", "2026-11-29", 44814637),
    (12, None, "2026-11-30", 0),
    (13, "No rash.", None, None),
]


def cdm(folder, notes=NOTES):
    """A database with a table of notes."""
    with sqlite3.connect(folder / "cdm.sqlite") as database:
        database.execute("CREATE TABLE note (note_id, note_text, note_date, note_type_concept_id)")
        database.executemany("INSERT INTO note VALUES (?, ?, ?, ?)", notes)
    database.close()


def asked(folder, query="SELECT * FROM note ORDER BY note_id", **ways):
    """A TOML file with a query; of the database beside it if nothing else is said."""
    ways = ways or {"url": "sqlite:///cdm.sqlite"}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {**ways, "query": query}.items()]
    return put(folder, "cdm.toml", "".join(lines))


# --- texts in -----------------------------------------------------------------------------


def test_notes_by_a_query(tmp_path):
    cdm(tmp_path)
    path = asked(tmp_path)
    reading = read(path, "omop")
    first, second = reading.documents
    assert (first.id, first.text, first.source) == ("11", NOTES[0][1], f"{path} row 1")
    assert first.attributes == (("note_date", "2026-11-29"), ("note_type_concept_id", "44814637"))
    assert (second.id, second.attributes) == ("13", ())
    assert [(one.kind, one.lost) for one in reading.problems] == [("empty-document", False)]
    again = read(path, "omop", columns=("note_type_concept_id", "note_date"))
    assert [(one.id, one.text) for one in again.documents] == [
        ("44814637", "2026-11-29"), ("0", "2026-11-30"),
    ]  # fmt: skip


def test_a_percent_and_a_colon_and_a_semicolon_in_quotes_are_the_query_s_own(tmp_path):
    cdm(tmp_path)
    query = "-- of one; ward\nSELECT note_id, note_text FROM note WHERE note_text LIKE '%after%'"
    query += " AND note_text <> ':x;' ;\n"
    assert [one.id for one in read(asked(tmp_path, query), "omop").documents] == ["11"]


def test_nothing_is_written(tmp_path):
    """A query that would write is refused before, and by the connection itself."""
    cdm(tmp_path)
    before = (tmp_path / "cdm.sqlite").read_bytes()
    for query in ("DELETE FROM note", "SELECT 1; DELETE FROM note", "/* SELECT */ DROP TABLE note"):
        with pytest.raises(SettingsError, match="not one statement that reads"):
            read(asked(tmp_path, query), "omop")
    query = "WITH x AS (SELECT 1) DELETE FROM note"
    with pytest.raises(DataError, match="readonly"):
        read(asked(tmp_path, query), "omop")
    assert (tmp_path / "cdm.sqlite").read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cdm.sqlite", "cdm.toml"]


def test_a_file_that_is_not_stated_to_be_one_opens_no_database(tmp_path):
    """Not even in a folder, or dropped onto a page."""
    cdm(tmp_path)
    (tmp_path / "in").mkdir()
    path = asked(tmp_path / "in", url=f"sqlite:///{tmp_path}/cdm.sqlite")
    for place in (path, path.parent):
        with pytest.raises(FormatError, match="state the format: omop"):
            detect(place)


def test_the_database_lies_beside_the_file_wherever_one_stands(tmp_path, monkeypatch):
    (tmp_path / "a#?%").mkdir()
    cdm(tmp_path / "a#?%")
    monkeypatch.chdir(tmp_path)
    assert len(read(asked(tmp_path / "a#?%"), "omop").documents) == 2
    with pytest.raises(MissingDataError, match="no such database"):
        read(asked(tmp_path), "omop")


@each(("cell", "said"), [
    (b"\xff\xfe", "note_text: a cell of the texts; expected text; got bytes"),
    (7, "note_text: a cell of the texts; expected text; got int"),
    ("a\0b", "note_text: a NUL character in a text"),
    ("x" * 1001, "note_text: a cell of more than 1,000 characters; got 1,001"),
])  # fmt: skip
def test_a_cell_that_is_no_text_is_named_by_row_and_column(tmp_path, monkeypatch, cell, said):
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    (tmp_path / "cdm.sqlite").unlink(missing_ok=True)
    cdm(tmp_path, [(1, "Rash", None, None), (2, cell, None, None), (3, "Rash", None, None)])
    path = asked(tmp_path)
    with pytest.raises(FormatError) as caught:
        read(path, "omop")
    assert str(caught.value).startswith(f"{path} row 2, column {said}")
    reading = read(path, "omop", options=Options(skip_broken=True))
    assert [one.id for one in reading.documents] == ["1", "3"]
    assert kinds(reading.problems) == ["broken-document"]


def test_other_cells_have_bounds_too(tmp_path, monkeypatch):
    cdm(tmp_path, [(1, "Rash", b"\0", None), (2.0, "Rash", "x" * 1001, 0.5)])
    path = asked(tmp_path, "SELECT * FROM note WHERE note_id = 1")
    with pytest.raises(FormatError, match="row 1, column note_date"):
        read(path, "omop")
    path = asked(tmp_path, "SELECT * FROM note WHERE note_id = 2")
    (document,) = read(path, "omop").documents
    assert (document.id, document.attributes[1]) == ("2", ("note_type_concept_id", "0.5"))
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    with pytest.raises(FormatError, match="row 1, column note_date"):
        read(path, "omop")


def test_text_that_is_not_utf_8_is_named_by_its_row(tmp_path):
    cdm(tmp_path, [(1, "Rash", None, None)])
    query = "SELECT note_id, note_text FROM note UNION ALL SELECT 2, CAST(x'ff41' AS TEXT)"
    with pytest.raises(DataError, match=r"cdm\.toml.*cannot be read .*UTF-8"):
        read(asked(tmp_path, query), "omop")


ENDLESS = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000000)
SELECT i AS note_id, {} AS note_text FROM n"""


@each("text", ["'Rash'", "NULL", "''"])
def test_a_billion_rows_end_at_the_bound(tmp_path, monkeypatch, text):
    cdm(tmp_path, []) if not (tmp_path / "cdm.sqlite").exists() else None
    monkeypatch.setattr(omop, "MOST_ROWS", 5000)
    with pytest.raises(FormatError, match="row 5001: the query gives more than 5,000 rows"):
        read(asked(tmp_path, ENDLESS.format(text)), "omop", options=Options(skip_broken=True))


def test_all_texts_together_have_a_bound(tmp_path, monkeypatch):
    cdm(tmp_path)
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    with pytest.raises(FormatError, match=r"row 11: .* or more than 1 MiB of text"):
        read(asked(tmp_path, ENDLESS.format("hex(zeroblob(50000))")), "omop")


@each(("query", "said"), [
    ("SELECT note_id, note_date FROM note", "no column of texts"),
    ("SELECT note_text, note_text FROM note", "two columns of the query have one name"),
    ("SELECT note_text FROM nots", "no such table: nots"),
    ("SELECT note_text FROM note WHERE 0", "the query gives no text"),
])  # fmt: skip
def test_a_query_that_gives_none_is_refused(tmp_path, query, said):
    cdm(tmp_path) if not (tmp_path / "cdm.sqlite").exists() else None
    with pytest.raises((FormatError, DataError), match=said) as caught:
        read(asked(tmp_path, query), "omop")
    assert str(tmp_path / "cdm.toml") in caught.value.where


@each("content", [
    "", "url", 'url = "sqlite:///a"', 'query = "SELECT 1"', 'url = 5\nquery = "SELECT 1"',
    'url = "sqlite:///a"\nurl_env = "B"\nquery = "SELECT 1"',
    'url = "sqlite:///a"\nquery = "SELECT 1"\nuser = "me"',
    'url = "no address"\nquery = "SELECT 1"', 'url = "x://h:port/d"\nquery = "SELECT 1"',
    'url = "sqlite://"\nquery = "SELECT 1"', 'url = "sqlite:///."\nquery = "SELECT 1"',
    'url = "nosuch://h/d"\nquery = "SELECT 1"', 'url_env = "A=B"\nquery = "SELECT 1"',
    'url_file = "missing"\nquery = "SELECT 1"', 'url_file = "."\nquery = "SELECT 1"',
    b"\xff\xfe", "a = " + "[" * 5000,
])  # fmt: skip
def test_another_file_is_refused(tmp_path, content):
    with pytest.raises((SettingsError, DataError, MissingDataError)) as caught:
        read(put(tmp_path, "cdm.toml", content), "omop")
    assert str(tmp_path) in caught.value.where


# --- a password is told to nobody ---------------------------------------------------------


def said_of(error):
    """All that a log would show of an error, and all that hangs on it."""
    parts = [*traceback.format_exception(error, chain=True), repr(error.__dict__)]
    while error is not None:
        parts.append(repr(error))
        error = error.__cause__ or error.__context__
    return "".join(parts)


ADDRESSES = (
    f"sqlite://me:{QUOTED}@nowhere/cdm.sqlite",
    f"nosuch://me:{QUOTED}@nowhere/cdm",
    f"postgresql://me:{QUOTED}@127.0.0.1:1/cdm",
    f"sqlite:///missing.sqlite?password={QUOTED}",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dme%3BPWD%3D{QUOTED}",
    f"no address at all {PASSWORD}",
    f"x://me:{PASSWORD}@host:port/",
)


@each("address", ADDRESSES)
def test_an_error_holds_no_password(tmp_path, monkeypatch, caplog, address):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CDM_URL", address)
    put(tmp_path, "secret/url", address + "\n")
    for ways in ({"url_env": "CDM_URL"}, {"url_file": "secret/url"}, {"url": address}):
        with pytest.raises(ConfideError) as caught:
            read(asked(tmp_path, **ways), "omop")
        said = said_of(caught.value) + caplog.text
        assert not [one for one in (PASSWORD, QUOTED, "nary", "7#pass") if one in said], said


def test_a_driver_that_says_the_password_is_not_quoted(tmp_path, monkeypatch, caplog):
    """As some do when they cannot connect."""
    import sqlalchemy

    def connect(*args, **more):
        raise RuntimeError(f"no login for me with {PASSWORD} ({QUOTED}, {PASSWORD!r})")

    monkeypatch.setattr(sqlalchemy, "create_engine", connect)
    monkeypatch.setenv("CDM_URL", f"postgresql://me:{QUOTED}@host/cdm")
    with pytest.raises(DataError, match=r"no login for me with \*\*\*") as caught:
        read(asked(tmp_path, url_env="CDM_URL"), "omop")
    assert "pass" not in said_of(caught.value).replace("password", "")


def test_what_is_read_and_written_holds_no_address(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    cdm(tmp_path)
    address = f"sqlite:///{tmp_path}/cdm.sqlite?cached_statements=7&uri=true"
    put(tmp_path, "url", address)
    reading = read(asked(tmp_path, url_file="url"), "omop")
    assert len(reading.documents) == 2
    write(reading.documents, tmp_path / "out.jsonl", "jsonl")
    for said in (repr(reading), caplog.text, (tmp_path / "out.jsonl").read_text()):
        assert "cached_statements" not in said


def test_a_password_in_the_file_itself_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"has a password in it.*url_file, or url_env"):
        read(asked(tmp_path, url="postgresql://me:x@host/cdm"), "omop")


# --- findings out -------------------------------------------------------------------------

FOUND = (
    Entity("T1", "ADE", ((0, 4),), 0.875, ("C0015230",), (("severity", "mild"),)),
    Entity("T2", "Drug", ((11, 18),), 0.5),
    Entity("T3", "Dose", ((22, 27),)),
)
MAP = '[types]\nADE = 4\nDrug = 21600001\n\n[texts]\n"Aspirin" = 1112807\n'


def found(folder):
    """The first note as it is read, with entities."""
    cdm(folder)
    first, *_ = read(asked(folder), "omop").documents
    return replace(first, entities=FOUND)


def test_note_nlp_as_csv(tmp_path):
    note = found(tmp_path)
    out = tmp_path / "note_nlp.csv"
    assert write([note], out, "note-nlp", map=put(tmp_path, "map.toml", MAP)) == []
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == omop.COLUMNS and len(omop.COLUMNS) == 14
    for row, entity in zip(rows, FOUND, strict=True):
        start, words = int(row["offset"]), row["lexical_variant"]
        assert note.text[start : start + len(words)] == words == note.surface(entity)
        assert (row["note_id"], row["term_exists"], row["section_concept_id"]) == ("11", "", "0")
        assert row["nlp_system"].startswith("confide ")
        assert row["nlp_datetime"].startswith(row["nlp_date"] + " ")
    assert [row["note_nlp_id"] for row in rows] == ["1", "2", "3"]
    assert [row["note_nlp_concept_id"] for row in rows] == ["4", "1112807", "0"]
    assert rows[0]["snippet"] == "Rash after aspirin 😀, 81 mg."
    assert json.loads(rows[0]["term_modifiers"]) == {
        "type": "ADE", "confidence": 0.875, "concepts": ["C0015230"],
        "attributes": [["severity", "mild"]],
    }  # fmt: skip


def test_an_assertion_says_whether_and_when_the_patient_has_it(tmp_path):
    wanted = {
        "present": ("Y", "present"), "historical": ("Y", "past"), "possible": ("", "present"),
        "absent": ("N", ""), "hypothetical": ("N", ""), "conditional": ("N", ""),
        "associated_with_someone_else": ("N", ""), "odd": ("", ""),
    }  # fmt: skip
    entities = tuple(replace(FOUND[0], attributes=(("assertion", one),)) for one in wanted)
    write([replace(found(tmp_path), entities=entities)], tmp_path / "out.csv", "note-nlp")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["term_exists"], row["term_temporal"]) for row in csv.DictReader(file)]
    assert rows == list(wanted.values())


@each("ending", [".sqlite", ".duckdb"])
def test_note_nlp_as_a_database(tmp_path, ending):
    if ending == ".duckdb":
        pytest.importorskip("duckdb_engine")
    import sqlalchemy

    note = Document("11", NOTES[0][1], FOUND)
    many = [replace(note, id=str(number)) for number in range(3_000_000_000, 3_000_000_400)]
    out = tmp_path / f"note_nlp{ending}"
    assert write(many, out, "note-nlp", map=put(tmp_path, "map.toml", MAP)) == []
    assert {one.name for one in tmp_path.iterdir()} >= {out.name}
    assert not [one for one in tmp_path.iterdir() if ".new" in one.name]
    engine = sqlalchemy.create_engine(f"{ending[1:]}:///{out}", poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM note_nlp ORDER BY note_nlp_id").fetchall()
    assert len(rows) == 1200
    assert tuple(rows[0]._fields) == omop.COLUMNS
    assert (rows[1].note_id, rows[1].lexical_variant) == (3_000_000_000, "aspirin")
    assert (rows[1].note_nlp_concept_id, rows[2].term_temporal) == (1112807, None)
    with pytest.raises(DataError, match="there is something already"):
        write(many, out, "note-nlp")


def test_a_database_that_cannot_be_written_is_not_there(tmp_path):
    put(tmp_path, "file", "")
    with pytest.raises(DataError, match="cannot be written"):
        write([Document("1", "a")], tmp_path / "file" / "a.sqlite", "note-nlp")


def test_duckdb_is_read(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    with duckdb.connect(str(tmp_path / "cdm.duckdb")) as database:
        database.execute("CREATE TABLE note (note_id BIGINT, note_text VARCHAR, note_date DATE)")
        database.execute("INSERT INTO note VALUES (1, 'Rash 😀', DATE '2026-11-29'), (2, '', NULL)")
    url = "duckdb:///cdm.duckdb"
    (document,) = read(asked(tmp_path, "SELECT * FROM note", url=url), "omop").documents
    assert (document.text, document.attributes) == ("Rash 😀", (("note_date", "2026-11-29"),))
    with pytest.raises(DataError, match="read-only"):
        query = "WITH x AS (SELECT 3) INSERT INTO note SELECT *, 'x', NULL FROM x"
        read(asked(tmp_path, query, url=url), "omop")


def test_what_has_no_row_or_is_cut_is_named(tmp_path):
    long = Document("5", "x" * 300, (Entity("T1", "A", ((0, 300),), None, ("c" * 2000,)),))
    other = Document("note 6", "Rash", (Entity("T1", "ADE", ((0, 4),)),))
    problems = write([long, other, Document("n", "a")], tmp_path / "a.csv", "note-nlp")
    assert [(one.kind, one.lost) for one in problems] == [("cut", True), ("no-note-id", True)]
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert len(row["lexical_variant"]) == len(row["snippet"]) == 250
    assert json.loads(row["term_modifiers"]) == {"type": "A"}
    with pytest.raises(FormatError, match="only written"):
        read(tmp_path / "a.csv", "note-nlp")


@each("value", ['"4"', "-1", "true", "2147483648", "1.0"])
def test_another_concept_id_is_refused(tmp_path, value):
    map = put(tmp_path, "map.toml", f"[types]\nADE = {value}\n")
    with pytest.raises(SettingsError, match="the map has no concept id for ADE"):
        write([Document("1", "a")], tmp_path / "a.csv", "note-nlp", map=map)


def test_on_the_command_line_the_map_stands_behind_the_format(tmp_path, monkeypatch):
    """And nothing that is printed or left in the folder holds the address."""
    secret = f"sqlite:///{tmp_path}/cdm.sqlite?x=77&password={QUOTED}"
    cdm(tmp_path)
    path, map = asked(tmp_path, url_env="CDM_URL"), put(tmp_path, "map.toml", MAP)
    out = tmp_path / "out" / "note_nlp.csv"
    words = ["data", "convert", str(path), "--format", "omop", "--out", str(out), "--to"]
    monkeypatch.setenv("CDM_URL", secret)
    done = CliRunner().invoke(app, [*words, f"note-nlp={map}"])
    assert (done.exit_code, out.is_file()) == (0, True), done.output
    monkeypatch.setenv("CDM_URL", f"nosuch://me:{QUOTED}@host/cdm?x=77")
    failed = CliRunner().invoke(app, [*words, f"note-nlp={map}"])
    assert failed.exit_code == 2 and "the database cannot be read" in " ".join(
        failed.output.split()
    )
    said = [done.output, failed.output]
    said += [one.read_text("utf-8") for one in out.parent.iterdir()]
    assert not [one for one in said if "=77" in one or "nary" in one or "7#pass" in one]
    monkeypatch.setenv("CDM_URL", secret)
    odd = CliRunner().invoke(app, [*words, f"jsonl={map}"])
    assert "the format takes none" in " ".join(odd.output.split())


def test_a_run_s_folder_holds_no_address(tmp_path, monkeypatch, caplog):
    """The public set of a run by a query: no file of the run, and no log, has the address."""
    from confide import api

    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    cdm(tmp_path)
    asked(tmp_path, url_env="CDM_URL")
    monkeypatch.setenv("CDM_URL", f"sqlite:///cdm.sqlite?x=77&password={QUOTED}")
    lines = "Rash\tB-ADE\nafter\tO\naspirin\tB-Drug\n.\tO\n\n"
    text = 'schema = 2\ntask = "ner"\nmethod = "feded"\nrounds = 1\n'
    text += '[public]\nfiles = ["cdm.toml"]\nformat = "omop"\nlabelled = false\n'
    for name in ("one", "two"):
        put(tmp_path, f"{name}.conll", lines * 12)
        text += f'[[site]]\nname = "{name}"\ntrain = ["{name}.conll"]\n'
    api.run(put(tmp_path, "settings.toml", text), out="run")
    written = [one.read_bytes() for one in (tmp_path / "run").rglob("*") if one.is_file()]
    assert any(b"cdm.toml" in raw for raw in written)
    secret = (b"x=77", b"nary", b"7#pass")
    assert not [raw for raw in (*written, caplog.text.encode()) for one in secret if one in raw]
