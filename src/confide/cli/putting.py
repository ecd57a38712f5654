"""Puts documents, scores and problems on the screen or into files."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confide.cli import screen
from confide.cli.screen import console, isolated
from confide.errors import DataError, SettingsError, os_errors_as

if TYPE_CHECKING:
    from rich.text import Text

    from confide.jobs.facts import StatedFact
    from confide.scoring.scores import Scored
    from confide.text.document import Document, Problem
    from confide.text.segment import Crossing, Cut


def put_documents(documents: Sequence[Document], path: Path | None, *, format: str) -> None:
    """Write documents to a path or to stdout; report on stderr what the format could not hold.

    Raises SettingsError if the format needs a folder and no path is given.
    """
    from confide import api

    if path is not None:
        say_problems(api.write(documents, path, format))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "documents"
        problems = [
            replace(problem, where="stdout") for problem in api.write(documents, file, format)
        ]
        if file.is_dir():
            raise SettingsError(
                f"{format} is a folder of files, which stdout cannot take",
                fix="name a folder with --out",
            )
        screen.put_file(file.read_text(encoding="utf-8"))
    say_problems(problems)


def say_problems(problems: Sequence[Problem]) -> None:
    """Print problems to stderr: how many of each kind, and the first few."""
    shown = console(sys.stderr)
    for line in problem_lines(problems):
        shown.print(line, soft_wrap=True)


def problem_lines(problems: Sequence[Problem], *, most: int | None = 3) -> list[Text]:
    """How many problems there are of each kind, and the first `most` of each (None: all)."""
    from rich.text import Text

    lines = []
    for kind, number in Counter(problem.kind for problem in problems).most_common():
        of_kind = [problem for problem in problems if problem.kind == kind]
        if number == 1:
            (only,) = of_kind
            lines.append(
                Text.assemble((kind, "bold yellow"), f": {only.where}: {isolated(only.what)}")
            )
            continue
        lost = sum(problem.lost for problem in of_kind)
        heading = f"{kind}: {number}" + (f", {lost} lost" if lost else "")
        lines.append(Text(heading, style="bold yellow"))
        lines += [
            Text(f"  {problem.where}: {isolated(problem.what)}") for problem in of_kind[:most]
        ]
        if most is not None and number > most:
            lines.append(Text(f"  … and {number - most} more", style="dim"))
    return lines


def crossing_lines(crossings: Mapping[str, Crossing]) -> list[Text]:
    """A warning for each type whose entities often cross the end of a sentence, and what to do."""
    from rich.text import Text

    lines = []
    for type, one in crossings.items():
        share = 100 * one.crossing / one.entities
        words = ", ".join(f"{isolated(word)} ({count})" for word, count in one.before.items())
        what = (
            f": {one.crossing} of {one.entities} ({share:.1f} %) cross the end of a sentence, after"
            f" {words}"
        )
        lines.append(Text.assemble((type, "bold yellow"), what))
    if lines:
        lines.append(
            Text(
                "Such entities are neither learnt nor found. State the language, name abbreviations"
                " that end no sentence (data.abbreviations), or take each line as a sentence"
                ' (data.sentences = "lines").'
            )
        )
    return lines


def cut_lines(found: Cut) -> list[Text]:
    """How many words in entities raw text has otherwise, if there are any, and what it means."""
    from rich.text import Text

    if not found.cut:
        return []
    what = (
        f": raw text has {found.cut} of {found.words} ({100 * found.share:.1f} %) words in entities"
        ' otherwise than these files; data.train_on = "own tokens" learns what raw text has'
    )
    return [Text.assemble(("tokens", "bold yellow"), what)]


def run_and_files(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The run, which comes first, and the files. Raises SettingsError if there is no file."""
    first, *others = words
    if not others:
        raise SettingsError(
            "no file is named", expected=f"{first} FILE...", fix="name a file, or - for stdin"
        )
    return Path(first), others


def named_types(given: Sequence[str] | None) -> dict[str, str]:
    """The names given by `--as FOUND=KNOWN`; an empty KNOWN drops a type. Raises SettingsError.

    >>> named_types(["Drug=CHEMICAL", "Age="])
    {'Drug': 'CHEMICAL', 'Age': ''}
    """
    names: dict[str, str] = {}
    for one in given or ():
        found, equals, known = (part.strip() for part in one.partition("="))
        if not equals or not found:
            raise SettingsError("--as takes two names", expected="FOUND=KNOWN", got=repr(one))
        if names.setdefault(found, known) != known:
            raise SettingsError(f"--as gives {found!r} two names", got=f"{names[found]}, {known}")
    return names


def wanted_types(given: str | None) -> list[str] | None:
    """The types given by `--types`, without spaces around them.

    >>> wanted_types("Drug, Age")
    ['Drug', 'Age']
    """
    return None if given is None else [one.strip() for one in given.split(",")]


FACTS = ("facts", "facts-jsonl")
"""What `predict` can write besides documents: a table of facts, or one JSON object for each."""


def put_facts(found: Sequence[StatedFact], out: Path | None, *, format: str) -> None:
    """Write the facts, likeliest first: a table with a header and tabs, or JSON Lines."""
    from confide.jobs.facts import COLUMNS

    if format == "facts":
        lines = ["\t".join(row) for row in (COLUMNS, *(fact.row() for fact in found))]
    else:
        lines = [screen.json_text(fact.record()) for fact in found]
    text = "".join(f"{line}\n" for line in lines)
    if out is None:
        screen.put_file(text)
        return
    with os_errors_as(
        DataError, "the facts cannot be written", where=out, fix="name another file with --out"
    ):
        out.write_text(text, encoding="utf-8")


def put_scores(found: Scored, *, as_json: bool) -> None:
    """Print what `evaluate` returned, as tables or JSON; name dropped types on stderr."""
    from confide.cli import tables

    if unknown := found.get("unknown"):
        chained = "micro" in found or "entities" in found
        who = "the relation model" if chained else "the model"
        so = "" if chained else ", so it counts as not found; --as FOUND=KNOWN renames it"
        screen.say(f"{who} does not know the type {' or '.join(unknown)}{so}")
    if doubt := found.get("confidences"):
        screen.say(doubt)
    if as_json:
        screen.put_json(found)
        return
    if "entities" not in found:
        screen.show(tables.scores(found))
        return
    related = tables.scores(found["relations"], title="Relations, end to end", of="end to end")
    screen.show(tables.scores(found["entities"], title="Entities"), related)


def say_released(folder: Path) -> None:
    """Say on stderr what a release reveals."""
    from confide.runs.release import release_tells

    screen.say(f"{folder}: {release_tells(folder)}")
