"""Held-out text under noise: a unit more or less moves no other unit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide.errors import DataError
from confide.runs.sites import PARTS, gather, hold_out, neighbour_blocks, public_share, train_share
from confide.settings import Settings, parse
from confide.text.document import Document, Sentence
from confide.text.formats import read


def settings_of(*, unit: str = "document", privacy: bool = True, **data: Any) -> Settings:
    table: dict[str, Any] = {"data": {"dev_share": 0.2, "test_share": 0.3, **data}}
    if privacy:
        table |= {"privacy": {"unit": unit, "patients": "-"}, "federation": {"sums": "masked"}}
    return parse(table | {"public": {"share": 0.3}, "split": {"train": "x", "sites": 2}})


def letters(count: int) -> list[Document]:
    """Two of each patient, with names and texts of their own."""
    return [Document(f"p{n // 2}-{n}", f"letter number {n} of many") for n in range(count)]


def parts_of(train: list[Document]) -> dict[str, list[Document]]:
    return {"train": train, "dev": [], "test": []}


def moved(first: list[Document], second: list[Document]) -> int:
    """How many documents are in one of two texts and not in the other."""
    one, two = Counter(d.text for d in first), Counter(d.text for d in second)
    return ((one - two) + (two - one)).total()


def drawn(settings: Settings, documents: list[Document]) -> list[list[Document]]:
    """Everything that is drawn of a text, by each of the three ways."""
    held = hold_out(parts_of(documents), settings, "north")
    kept, public = public_share(documents, settings)
    return [*held.values(), kept, public, train_share(documents, settings, "north")]


@each("place", [0, 57, 199])
def test_under_noise_a_document_less_moves_no_other(place: int) -> None:
    settings = settings_of(train_share=0.5)
    whole = letters(200)
    fewer = whole[:place] + whole[place + 1 :]
    for before, after in zip(drawn(settings, whole), drawn(settings, fewer), strict=True):
        assert moved(before, after) <= 1
        assert before, "something is drawn"


def test_a_text_of_one_document_is_drawn_as_one_of_two_is() -> None:
    settings = settings_of()
    for one, other in zip(letters(40), letters(41)[1:], strict=True):
        assert moved(public_share([one], settings)[1], public_share([one, other], settings)[1]) <= 1


def test_without_noise_shares_are_exact_and_a_document_less_deals_them_anew() -> None:
    settings = settings_of(privacy=False, train_share=0.5)
    before, after = drawn(settings, letters(200)), drawn(settings, letters(199))
    assert [len(one) for one in before] == [100, 40, 60, 140, 60, 100]
    assert moved(before[0], after[0]) > 20


def test_the_name_and_the_place_of_a_document_decide_nothing() -> None:
    settings, documents = settings_of(train_share=0.5), letters(60)
    renamed = [Document(f"x{n}", one.text) for n, one in enumerate(reversed(documents))]
    for before, after in zip(drawn(settings, documents), drawn(settings, renamed), strict=True):
        assert moved(before, after) == 0


def test_a_patients_documents_stay_together() -> None:
    settings = settings_of(unit="patient")
    for share in hold_out(parts_of(letters(200)), settings, "north").values():
        assert set(Counter(one.id.partition("-")[0] for one in share).values()) == {2}


def test_shares_are_about_as_large_as_asked_and_differ_by_seed_and_site() -> None:
    settings, documents = settings_of(), letters(4000)
    held = hold_out(parts_of(documents), settings, "north")
    for part, share in zip(PARTS, (0.5, 0.2, 0.3), strict=True):
        assert len(held[part]) == pytest.approx(share * 4000, abs=4 * (share * 4000) ** 0.5)
    other = settings.model_copy(update={"seed": 2})
    assert moved(held["test"], hold_out(parts_of(documents), settings, "south")["test"]) > 500
    assert moved(held["test"], hold_out(parts_of(documents), other, "north")["test"]) > 500
    assert moved(train_share(documents, settings_of(train_share=0.3), "north"), held["test"]) > 500


def test_a_larger_share_has_all_of_a_smaller_one() -> None:
    documents = letters(200)
    small, large = (
        {one.text for one in train_share(documents, settings_of(train_share=share), "north")}
        for share in (0.3, 0.6)
    )
    assert small < large


def test_files_stay_as_they_are() -> None:
    parts = {"train": letters(20), "dev": letters(3), "test": []}
    held = hold_out(parts, settings_of(), "north")
    assert held["dev"] == letters(3)
    assert 0 < len(held["test"]) < 20
    assert hold_out(parts, settings_of(), "north", given=("test",)) == parts


def test_sentences_as_units_need_documents_of_one_sentence_or_files() -> None:
    settings = settings_of(unit="sentence")
    one = Document("a", "One. Two.", sentences=tuple(sentence(*at) for at in ((0, 4), (5, 9))))
    with pytest.raises(DataError, match="no share of this text") as caught:
        hold_out(parts_of([one]), settings, "north")
    assert "name held-out text in files" in str(caught.value)
    whole = {"train": [one], "dev": [one], "test": [one]}
    assert hold_out(whole, settings, "north") == whole
    short = [Document("a", "One."), Document("b", "Two.")]
    assert moved(*(hold_out(parts_of(t), settings, "n")["train"] for t in (short, short[:1]))) <= 1
    unsegmented = Document("a", "One came. Two went.")
    with pytest.raises(DataError, match="no share of this text"):
        hold_out(parts_of([unsegmented]), settings, "north")


def sentence(start: int, end: int) -> Sentence:
    return Sentence(start, end, ((start, end),))


def test_a_site_trains_on_one_document_less_if_its_files_have_one_less(tmp_path: Path) -> None:
    trained = []
    for name, count in (("whole", 120), ("fewer", 119)):
        lines = "".join(f"word{n} O\nhere O\n\n" for n in range(count))
        (tmp_path / f"{name}.conll").write_text(lines, encoding="utf-8")
        table = {"name": "north", "train": str(tmp_path / f"{name}.conll")}
        noise = {"privacy": {"unit": "sentence"}, "federation": {"sums": "masked"}}
        settings = parse({"data": {"format": "conll"}, "site": [table], **noise})
        found = gather(settings, tmp_path / "run", key_file=None)
        trained.append(list(found.specs[0].train))
    assert moved(*trained) <= 1
    assert 60 < len(trained[0]) < 110


def columns(folder: Path, count: int, *, marks: int = 0, name: str = "a") -> Path:
    """A file of sentences, with a mark before each of so many documents of equal length."""
    lines = ""
    for n in range(count):
        if marks and n % (count // marks) == 0:
            lines += "-DOCSTART- O\n\n"
        lines += f"word{name}{n} O\nhere O\n\n"
    (folder / f"{name}.conll").write_text(lines, encoding="utf-8")
    return folder / f"{name}.conll"


def places(documents: list[Document]) -> list[int]:
    """The lines of sentences, counted by sentence."""
    return sorted(int(one.source.rpartition(":")[2]) // 3 for one in documents)


def runs_of(numbers: list[int]) -> list[int]:
    """How long the runs of consecutive numbers are."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return [end - start + 1 for start, end in zip(starts, ends, strict=True)]


@each("count", [1, 2, 10, 18, 60, 240, 700, 3000])
def test_sentences_of_unknown_documents_are_held_out_in_runs(tmp_path: Path, count: int) -> None:
    train = read(columns(tmp_path, count)).documents
    settings = settings_of(privacy=False, dev_share=0.1, test_share=0.2)
    held = hold_out(parts_of(train), settings, "north")
    assert Counter(d.id for part in held.values() for d in part) == Counter(d.id for d in train)
    for part, share in (("dev", 0.1), ("test", 0.2)):
        wanted = share * count
        assert len(held[part]) == pytest.approx(wanted, abs=max(1.5, 0.5 * min(20, wanted)))
        least = min(9, int(0.1 * count))  # a block may be a sentence shorter than another
        assert all(length >= least for length in runs_of(places(held[part])))
    if count >= 500:
        assert len(runs_of(places(held["dev"]))) >= 3
    again = hold_out(parts_of(train), settings, "north")
    assert again == held
    if count > 200:
        assert hold_out(parts_of(train), settings, "south") != held


def test_a_document_with_a_mark_is_held_out_whole_and_two_files_share_no_block(
    tmp_path: Path,
) -> None:
    settings = settings_of(privacy=False, dev_share=0.2, test_share=0.2)
    marked = read(columns(tmp_path, 100, marks=10)).documents
    held = hold_out(parts_of(marked), settings, "north")
    assert [len(held[part]) for part in PARTS] == [6, 2, 2]
    assert all(len(one.sentences) == 10 for part in PARTS for one in held[part])
    two = [read(columns(tmp_path, 15, name=name)).documents for name in "bc"]
    for block in neighbour_blocks([*two[0], *marked, *two[1]], share=0.2):
        assert len({one.source.rpartition(":")[0] for one in block}) == 1
        assert block[0].unmarked or len(block) == 1


def test_other_formats_and_bare_documents_are_held_out_one_by_one() -> None:
    assert [len(one) for one in neighbour_blocks(letters(50), share=0.3)] == [1] * 50
