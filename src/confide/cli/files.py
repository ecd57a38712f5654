"""Options for reading files, shared by verbs, and output of documents, scores and problems."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from confide.cli import screen
from confide.cli.screen import (
    Encoding,
    Format,
    Language,
    Scheme,
    SkipBroken,
    Types,
    console,
    isolated,
)
from confide.errors import DataError, SettingsError, os_errors_as

if TYPE_CHECKING:
    from rich.text import Text

    from confide.jobs.predict import StatedFact
    from confide.scoring.counts import Scored
    from confide.text.document import Document, Problem
    from confide.text.formats import Columns, Options
    from confide.text.segment import Crossing, WordsCut


_NO_TAGS = "none"


@dataclass(frozen=True, slots=True)
class SettingsOptions:
    """Options for reading files that settings can hold too; `format` names the reader."""

    format: Format = None
    scheme: Scheme = None
    encoding: Encoding = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN,TAG",
            help="Columns by number from 0 or by name; of a table of notes, ID,TEXT.",
        ),
    ] = None
    annotators: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Of several annotators: first, majority, or a name."),
    ] = None
    language: Language = "auto"
    skip_broken: SkipBroken = False

    def options(self) -> Options:
        """Return the options for the readers. Raises SettingsError for columns of another form."""
        from confide.text.formats import Options

        return Options(
            scheme=self.scheme,
            encoding=self.encoding,
            columns=columns_named(self.columns),
            annotators=self.annotators,
            skip_broken=self.skip_broken,
            language=self.language,
        )


@dataclass(frozen=True, slots=True)
class ReadingOptions(SettingsOptions):
    """All that may be said about reading."""

    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="An allowed type; repeat for more."),
    ] = None
    bare_type: Annotated[
        str, typer.Option(metavar="TYPE", help="The type for tags that are only B, I or O.")
    ] = "entity"

    def options(self) -> Options:
        """Return the options for the readers. Raises SettingsError for columns of another form."""
        return replace(
            SettingsOptions.options(self),
            types=None if self.types is None else frozenset(self.types),
            bare_type=self.bare_type,
        )


@dataclass(frozen=True, slots=True)
class NotesOptions:
    """Options for reading text that a model annotates."""

    format: Format = None
    encoding: Encoding = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="ID,TEXT",
            help="Columns of a table of notes, by name or number; of CoNLL, TOKEN,none.",
        ),
    ] = None
    skip_broken: SkipBroken = False
    types: Types = None

    def read(self, files: Sequence[str]) -> Sequence[str | Document]:
        """The files themselves or, if more than their format was said, their documents.

        Those that were left out are named on stderr. Raises SettingsError for columns of another
        form, and as `read` does.
        """
        if (self.encoding, self.columns, self.skip_broken) == (None, None, False):
            return files
        from confide.jobs.predict import documents_of
        from confide.text.formats import Options

        options = Options(
            encoding=self.encoding,
            columns=columns_named(self.columns),
            skip_broken=self.skip_broken,
        )
        problems: list[Problem] = []
        found = documents_of(files, format=self.format, options=options, problems=problems)
        say_problems([one for one in problems if one.kind == "broken-document"])
        return found


@dataclass(frozen=True, slots=True)
class GoldOptions:
    """Options for reading annotated text that a model is scored on."""

    format: Format = None
    scheme: Scheme = None
    types: Types = None

    def read(self, files: Sequence[str]) -> Sequence[str | Document]:
        """The files themselves or, if a scheme was said, their documents. Raises as `read` does."""
        if self.scheme is None:
            return files
        from confide.jobs.predict import documents_of
        from confide.text.formats import Options

        return documents_of(files, format=self.format, options=Options(self.scheme))


def columns_named(given: str | None) -> Columns | None:
    """Two columns, each a number or a name; the second may be `none`. Raises SettingsError.

    >>> columns_named("0,-1"), columns_named("words,none")
    ((0, -1), ('words', None))
    """
    if given is None:
        return None
    first, second = (part.strip() for part in given.partition(",")[::2])
    if not first or not second or "," in second:
        raise SettingsError(
            "--columns takes two columns", expected="TOKEN,TAG, such as 0,3", got=repr(given[:60])
        )
    return _column(first), None if second == _NO_TAGS else _column(second)


def _column(word: str) -> int | str:
    digits = word.removeprefix("-")
    return int(word) if digits.isascii() and digits.isdigit() and len(digits) < 5 else word


def reads(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb with the options of `ReadingOptions`; its own parameter `how` gets what was said."""
    return reads_as(ReadingOptions)(verb)


def reads_as(
    form: type[SettingsOptions] | type[NotesOptions] | type[GoldOptions],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a verb with the options of `form`; its parameter `how` gets their values."""
    return partial(_with_options, form)


def _with_options(
    form: type[SettingsOptions] | type[NotesOptions] | type[GoldOptions], verb: Callable[..., None]
) -> Callable[..., None]:
    own = [one for one in inspect.signature(verb, eval_str=True).parameters.values()
           if one.name != "how"]  # fmt: skip
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=getattr(form(), name), annotation=kind
        )
        for name, kind in get_type_hints(form, include_extras=True).items()
    ]

    @wraps(verb)
    def whole(**given: Any) -> None:
        how = form(**{one.name: given.pop(one.name) for one in shared})
        verb(how=how, **given)

    every = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *shared]
    whole.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    whole.__annotations__ = {one.name: one.annotation for one in every}
    del whole.__wrapped__
    return whole


# --- Output of documents, scores and problems
#
# They go to the screen or into files.


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
    """Lines with the number of problems of each kind, and the first `most` of each (None: all)."""
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


def cut_lines(found: WordsCut) -> list[Text]:
    """Lines on words that raw text cuts differently inside entities, and what that means."""
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
"""Formats that `predict` can write besides documents: a table of facts, or one JSON object for
each."""


def put_facts(found: Sequence[StatedFact], out: Path | None, *, format: str) -> None:
    """Write the facts, likeliest first: a table with a header and tabs, or JSON Lines."""
    from confide.jobs.predict import COLUMNS

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
    from confide.runs.loading import release_tells

    screen.say(f"{folder}: {release_tells(folder)}")
