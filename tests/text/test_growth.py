"""Reading takes time in proportion to what is read: twice as much, at most three times as long.

Each format is given the shortest rows that it allows, whose number counts and not their length;
`check` is what `confide data check` does with them. Seconds would be those of a machine.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from confide.errors import FormatError
from confide.text.checking import check
from confide.text.formats import FORMATS, read
from confide.text.reading import gc_paused

ROWS = 4000
TRIES = 3


def _row(text: str) -> Callable[[int], dict[str, str]]:
    return lambda count: {"a.txt": text * count}


def _brat(row: str, *, first: str = "T\tA 0 1\n") -> Callable[[int], dict[str, str]]:
    return lambda count: {"a.txt": "a " * 200, "a.ann": first + row * count}


def _numbered(count: int) -> dict[str, str]:
    rows = (f"T{n}\tA {2 * n} {2 * n + 1}\ta\nR{n}\tB a:T{n} b:T0\n" for n in range(count))
    return {"a.txt": "a " * count, "a.ann": "".join(rows)}


def _list(row: str) -> Callable[[int], dict[str, str]]:
    return lambda count: {"a.txt": '{"text":"a","entities":[' + ",".join([row] * count) + "]}"}


FILES: dict[str, tuple[str, Callable[[int], dict[str, str]]]] = {
    "biobert": ("biobert", _row("@A$ @B$\t1\n")),
    "biobert, no pair": ("biobert", _row("a\t1\n")),
    "conll": ("conll", _row("a O\n\n")),
    "conll, entities": ("conll", _row("a B-A\n\n")),
    "conll, one sentence": ("conll", _row("a B-A\nb O\n")),
    "conll, malformed": ("conll", _row("a I-A\n\n")),
    "conll, marks": ("conll", _row("-DOCSTART-\na B-A\n\n")),
    "nyt10": ("nyt10", _row("1\t2\ta\tb\tr\ta b\n")),
    "nyt10, not found": ("nyt10", _row("1\t2\ta\tb\tr\tc\n")),
    "nyt10, the same": ("nyt10", _row("1\t2\ta\ta\tr\ta\n")),
    "opennre": ("opennre", _row('{"text":"a b","h":{"name":"a"},"t":{"name":"b"}}\n')),
    "opennre, a dict": ("opennre", _row("{'text':'a','h':{},'t':{}}\n")),
    "chemprot": ("chemprot", _row('{"text":"<< a >> [[ b ]]","label":"x"}\n')),
    "semeval": ("semeval", _row("1\t<e1>a</e1><e2>b</e2>\nX(e1,e2)\n")),
    "pubtator": ("pubtator", _row("1|t|a\n1\t0\t1\ta\tA\n\n")),
    "pubtator, one": ("pubtator", lambda n: {"a.txt": "1|t|a\n" + "1\t0\t1\ta\tA\n" * n}),
    "jsonl": ("jsonl", _row('{"text":"a","entities":[[0,1,"A"]]}\n')),
    "jsonl, one": ("jsonl", _list('[0,1,"A"]')),
    "text": ("text", _row("a. A\n\n")),
    "brat": ("brat", _numbered),
    "brat, one name": ("brat", _brat("T\tA 0 1\tb\n")),
    "brat, fragments": ("brat", _brat("T\tA 0 1;3 4\n")),
    "brat, many fragments": ("brat", _brat(";0 1", first="T\tA 0 1")),
    "brat, long": ("brat", _brat("T\tA 0 200\ta\n")),
    "brat, relations": ("brat", _brat("R\tA :T :T\n")),
    "brat, events": ("brat", _brat("E\tA:T B:T\n")),
    "brat, arguments": ("brat", _brat(" :T", first="T\tA 0 1\nE\tA:T")),
    "brat, equivalences": ("brat", _brat("*\tE T U\n", first="T\tA 0 1\nU\tA 2 3\n")),
    "brat, attributes": ("brat", _brat("A\tX T\n")),
    "brat, unknown": ("brat", _brat("x\n")),
}


def _seconds(path: Path, format: str) -> float:
    """Of the processor, the best of some tries."""
    best = float("inf")
    for _ in range(TRIES):
        gc.collect()
        start = time.process_time()
        check(path, format=format)
        best = min(best, time.process_time() - start)
    return best


def _laid(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder if len(files) > 1 else folder / "a.txt"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_twice_as_much_takes_at_most_three_times_as_long(tmp_path: Path, name: str) -> None:
    format, made = FILES[name]
    assert format in FORMATS
    once = _laid(tmp_path / "once", made(ROWS))
    twice = _laid(tmp_path / "twice", made(2 * ROWS))
    # other work on the machine disturbs one comparison; what grows with the square fails them all
    assert any(_seconds(twice, format) <= 3 * _seconds(once, format) for _ in range(TRIES))


# --- the collector ------------------------------------------------------------------------


def test_the_collector_rests_while_a_file_is_read_and_is_on_again(tmp_path: Path) -> None:
    assert gc.isenabled()
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    (tmp_path / "a.tsv").write_text("a\n")
    with pytest.raises(FormatError):
        read(tmp_path / "a.tsv", "biobert")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_frozen_stays_frozen(tmp_path: Path) -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with gc_paused():
            pass
        # other threads may have let go of a few of them since
        assert gc.get_freeze_count() > 0.9 * count > 0
    finally:
        gc.unfreeze()
    with gc_paused():
        made = [[number] for number in range(1000)]
    assert gc.get_freeze_count() == 0
    assert len(made) == 1000
