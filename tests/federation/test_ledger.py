"""The ledger: what it says adds up to what was sent, also after a crash."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from confide.errors import RunError
from confide.federation.comparing import compare_ledgers
from confide.federation.ledger import START, Ledger, ledger, read_ledger, read_lines
from confide.federation.messages import FieldSize, encode
from federation.toys import MULTIPLY, TELL, Tampering, ask, federation, sequential


def ask_twice(folder: Path, path: Path) -> tuple[Ledger, dict[str, int]]:
    """Two asks of three sites; the ledger, and the bytes that were really sent back."""
    sent: dict[str, int] = {}

    def count(site: str, data: bytes) -> bytes:
        sent[site] = sent.get(site, 0) + len(data)
        return data

    book = Ledger(path)
    sites = federation(Tampering(sequential(folder), count), book)
    sites.sum(MULTIPLY, ask(), round=1)
    sites.ask(TELL, ask(), round=1)
    return book, sent


def test_bytes_add_up_to_the_encoded_messages(tmp_path: Path) -> None:
    book, sent = ask_twice(tmp_path, tmp_path / "ledger.jsonl")
    length = book.flush()
    assert length == (tmp_path / "ledger.jsonl").stat().st_size
    assert book.totals["up"] == sent
    assert book.totals["down"] == {site: 2 * len(encode(ask())) for site in sent}
    entries = list(read_ledger(tmp_path / "ledger.jsonl"))
    for site, total in sent.items():
        assert sum(e.bytes for e in entries if (e.site, e.direction) == (site, "up")) == total
    weights = next(e for e in entries if e.field == "weights" and e.direction == "up")
    assert (weights.bytes, weights.count, weights.seen) == (11 * 4, 11, "sum")
    assert {e.seen for e in entries if e.step == "tell" and e.direction == "up"} == {"one by one"}


def test_a_ledger_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book, sent = ask_twice(tmp_path, path)
    length = book.flush()
    later = Ledger(path)
    assert later.totals == book.totals
    sites = federation(sequential(tmp_path), later)
    sites.ask(TELL, ask(), round=2)
    later.flush()
    assert later.totals["up"]["site-1"] > sent["site-1"]
    before = path.read_bytes()
    assert Ledger.resumed(path, length=length, round=1).totals == book.totals
    assert Ledger(path).totals == book.totals
    assert path.read_bytes().startswith(before)
    last = read_lines(path)[-1]
    assert last.chained
    told = {key: value for key, value in last.tree.items() if key != "before"}
    assert told == {"note": "resumed", "round": 1, "from": length}


def test_what_crossed_again_is_counted_beside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book, _ = ask_twice(tmp_path, path)
    length = book.flush()
    once = {(row.step, row.direction, row.field): row for row in ledger(tmp_path)}
    for time in (1, 2):  # crashed twice in the same round
        later = Ledger.resumed(path, length=length, round=1)
        federation(sequential(tmp_path), later).ask(TELL, ask(), round=2)
        later.flush()
        tells = [e for e in read_ledger(path) if e.step == "tell" and e.round == 2]
        assert len(tells) == len({(e.site, e.direction, e.field) for e in tells})
        rows = {(row.step, row.direction, row.field): row for row in ledger(tmp_path)}
        words = rows["tell", "up", "words"]
        first = once["tell", "up", "words"]
        assert words.bytes == 2 * first.bytes
        assert words.again == (time - 1) * first.bytes
        assert rows["multiply", "up", "weights"] == once["multiply", "up", "weights"]
        assert Ledger(path).totals == later.totals


def test_every_line_holds_the_digest_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book, _ = ask_twice(tmp_path, path)
    book.flush()
    Ledger.resumed(path, length=0, round=0)
    lines = path.read_bytes().splitlines()
    assert json.loads(lines[0])["before"] == START
    for one, other in itertools.pairwise(lines):
        assert json.loads(other)["before"] == hashlib.sha256(one).hexdigest()
    for number in range(len(lines) - 1):
        changed = list(lines)
        changed[number] = changed[number].replace(b'"count":', b'"count": ')
        path.write_bytes(b"\n".join(changed) + b"\n")
        with pytest.raises(
            RunError, match=rf"ledger\.jsonl:{number + 2}: this line .* was changed"
        ):
            Ledger(path)
        path.write_bytes(b"\n".join(lines[:number] + lines[number + 1 :]) + b"\n")
        with pytest.raises(
            RunError, match=rf"ledger\.jsonl:{number + 1}: this line .* was changed"
        ):
            Ledger(path)


def test_a_ledger_of_an_older_version_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book, _ = ask_twice(tmp_path, path)
    book.flush()
    trees = [json.loads(line) for line in path.read_text().splitlines()]
    old = "".join(json.dumps({k: v for k, v in t.items() if k != "before"}) + "\n" for t in trees)
    path.write_text(old)
    assert Ledger(path).totals == book.totals
    later = Ledger.resumed(path, length=len(old), round=1)
    assert later.totals == book.totals
    federation(sequential(tmp_path), later).ask(TELL, ask(), round=2)
    later.flush()
    assert path.read_text().startswith(old)
    kinds = [line.chained for line in read_lines(path)]
    assert kinds == [None] * len(trees) + [True] * (len(kinds) - len(trees))
    with open(path, "a") as file:
        file.write(old.splitlines()[0] + "\n")
    with pytest.raises(RunError, match="was changed"):
        Ledger(path)


def test_a_half_written_line_stays_and_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book, _ = ask_twice(tmp_path, path)
    length = book.flush()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"round":2,"st')
    with pytest.raises(RunError, match=r"ledger\.jsonl:\d+: a line of the ledger is damaged"):
        Ledger(path)
    before = path.read_bytes()
    assert Ledger.resumed(path, length=length, round=1).totals == book.totals
    assert path.read_bytes().startswith(before + b"\n")
    assert read_lines(path)[-1].tree["torn"] is True
    assert all(line.chained for line in read_lines(path) if line.tree)


def test_a_resume_that_a_crash_tore_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book, _ = ask_twice(tmp_path, path)
    length = book.flush()
    torn = path.read_bytes() + b'{"round":2,"st'
    path.write_bytes(torn)
    Ledger.resumed(path, length=length, round=1)
    whole = path.read_bytes()
    for cut in range(len(torn), len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert Ledger.resumed(path, length=length, round=1).totals == book.totals
        assert path.read_bytes().startswith(whole[:cut])
        assert Ledger(path).totals == book.totals


def test_a_ledger_that_lost_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(RunError, match="missing"):
        Ledger.resumed(path, length=10)
    assert Ledger.resumed(path, length=0).lines == 0
    path.write_text("short")
    with pytest.raises(RunError, match=r"at least 10 bytes; got 5 bytes"):
        Ledger.resumed(path, length=10)
    assert path.read_text() == "short"


def test_a_full_disk_is_told_and_nothing_counts_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins

    book, sent = ask_twice(tmp_path, tmp_path / "ledger.jsonl")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", full)
        with pytest.raises(RunError, match=r"could not be written.*--resume"):
            book.flush()
    book.flush()
    assert Ledger(tmp_path / "ledger.jsonl").totals["up"] == sent


def test_what_a_full_disk_took_of_a_line_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, sent = ask_twice(tmp_path, tmp_path / "ledger.jsonl")

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() > 200:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(bytes(data)[:150])

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", lambda path, *_, **__: Full(path, "a"))
        with pytest.raises(RunError, match="No space left"):
            book.flush()
    assert (tmp_path / "ledger.jsonl").stat().st_size == 0
    book.flush()
    assert Ledger(tmp_path / "ledger.jsonl").totals["up"] == sent


def test_without_a_file_totals_are_kept(tmp_path: Path) -> None:
    book = Ledger()
    federation(sequential(tmp_path), book).ask(TELL, ask(), round=1)
    assert book.flush() == 0
    assert sorted(book.totals["up"]) == ["site-1", "site-2", "site-3"]


def test_rows_add_up_a_run(tmp_path: Path) -> None:
    book, sent = ask_twice(tmp_path / "toys", tmp_path / "ledger.jsonl")
    book.flush()
    rows = ledger(tmp_path)
    assert sum(row.bytes for row in rows if row.direction == "up") == sum(sent.values())
    words = next(row for row in rows if row.field == "words")
    assert (words.step, words.sites, words.rounds, words.count) == ("tell", 3, 1, 6)


def test_the_ledgers_of_alone_are_joined(tmp_path: Path) -> None:
    for site in "ab":
        folder = tmp_path / "alone" / site
        folder.mkdir(parents=True)
        ask_twice(folder, folder / "ledger.jsonl")[0].flush()
    one = tmp_path / "alone" / "a"
    assert [row.bytes for row in ledger(tmp_path)] == [2 * row.bytes for row in ledger(one)]


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no ledger"):
        ledger(tmp_path)
    (tmp_path / "ledger.jsonl").write_text(json.dumps({"round": 1}) + "\n")
    with pytest.raises(RunError, match=r"ledger\.jsonl:1: a line of the ledger is damaged"):
        ledger(tmp_path)


def noted(folder: Path, *rows: tuple[int, str, int], site: str = "north") -> Path:
    """A folder with a ledger of these (round, field, bytes)."""
    book = Ledger(folder / "ledger.jsonl")
    folder.mkdir()
    for round, field, weight in rows:
        size = FieldSize(field, "number", weight, 1)
        book.record([size], round=round, step="train", direction="up", site=site, seen="sum")
    book.flush()
    return folder


def test_two_ledgers_that_say_the_same_agree(tmp_path: Path) -> None:
    server = noted(tmp_path / "server", (1, "loss", 4), (2, "loss", 4))
    book = Ledger(server / "ledger.jsonl")
    other = FieldSize("loss", "number", 1, 1)
    book.record([other], round=7, step="train", direction="up", site="south", seen="sum")
    book.flush()
    found = compare_ledgers(server, noted(tmp_path / "site", (1, "loss", 4), (2, "loss", 4)))
    assert found.agree and (found.site, found.messages, found.again) == ("north", 2, 0)
    crashed = noted(tmp_path / "crashed", (1, "loss", 4), (2, "loss", 4), (2, "loss", 4))
    found = compare_ledgers(str(server), str(crashed / "ledger.jsonl"))
    assert found.agree and found.again == 1


def test_two_ledgers_that_differ_say_where(tmp_path: Path) -> None:
    server = noted(tmp_path / "server", (1, "loss", 4), (2, "loss", 4), (2, "loss", 4))
    site = noted(tmp_path / "site", (1, "loss", 4), (2, "loss", 4), (3, "words", 9))
    found = compare_ledgers(server, site)
    assert not found.agree
    assert found.only_here == ("round 2, train, up, loss: 4 bytes",)
    assert found.only_there == ("round 3, train, up, words: 9 bytes",)
    with pytest.raises(RunError, match="no site's ledger here"):
        compare_ledgers(server, tmp_path / "nowhere")
    noted(tmp_path / "south", (1, "loss", 4), site="south")
    with open(site / "ledger.jsonl", "a") as file:
        file.write((tmp_path / "south" / "ledger.jsonl").read_text())
    with pytest.raises(RunError, match="not the ledger of one site"):
        compare_ledgers(server, site)


def test_a_changed_ledger_does_not_agree_even_without_seals(tmp_path: Path) -> None:
    server = noted(tmp_path / "server", (1, "loss", 4), (2, "loss", 4), (3, "loss", 4))
    path = noted(tmp_path / "site", (1, "loss", 4), (2, "loss", 4), (3, "loss", 4)) / "ledger.jsonl"
    path.write_text(path.read_text().replace('"count":1', '"count": 1', 1))
    found = compare_ledgers(server, path)
    assert not found.agree and not found.only_here and not found.only_there
    assert found.faults[0].startswith(f"{path}:2: this line, or the one before it")
