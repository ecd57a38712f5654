"""Commands from plain functions: signatures say what is given, docstrings explain it.

What comes before the `*` of a signature are arguments, what comes after are options. The section
"Options" of a docstring has the help of each, as `name: help`, or with a flag, a metavar or a lower
bound that differ from the usual, as `name (--flag METAVAR >= 1): help`. Those that mean the same in
every command are explained in `SHARED` and `ReadingOptions`. A parameter that is a dataclass stands
for all of its fields, which its own docstring explains.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer
from typer.core import TyperCommand

from confide.cli import screen, tables
from confide.errors import SettingsError

if TYPE_CHECKING:
    from confide.runs.loading import Models
    from confide.text.document import Document, Problem
    from confide.text.formats import Columns, Options

SHARED = """Options:
    as_json (--json): Print JSON instead of a table.
    both: Also show what goes down to a site.
    files (FILE...): Annotated files.
    key (FILE): The sites' shared key, for a model with a keyed word list.
    kit (KIT): The startup kit's folder.
    log (NAME[=WHERE]): Also log to jsonl, tensorboard, mlflow or wandb; may be repeated.
    names (--as FOUND=KNOWN): Rename an entity type to the model's name.
    overrides (--set KEY=VALUE): Change one setting.
    passphrase: Encrypt the key; asks for a passphrase or reads $CONFIDE_PASSPHRASE_FILE.
    quiet: Show no progress.
    run: A run's folder.
    run_and_files (RUN FILE...):
        A run's folder, a release or NER_RUN+RE_RUN+context, then files (- is stdin).
    settings (SETTINGS): A settings file or a recipe's name.
    site (NAME): Use this site's model, if it has or keeps its own.
    strict: End with exit code 1 if anything is lost or doubtful.
    unit (FILE): Write a hardened systemd unit; start nothing.
    wait (SECONDS): How long to wait at most.
"""

_ENTRY = re.compile(r"(\w+)(?: \((--\S+)? ?([^)]*?)(?: ?>= (\d+))?\))?: (.*)")
Function = Callable[..., None]


def command(
    group: typer.Typer, name: str, *, reading: str = "", cls: type[TyperCommand] = TyperCommand
) -> Callable[[Function], Function]:
    """Decorate a function that becomes the command `name` of a group.

    `reading` names the fields of `ReadingOptions` that are options of this command too; they reach
    the function in its parameter of that name.
    """

    def add(function: Function) -> Function:
        text = (inspect.getdoc(function) or "").partition("\n\nOptions:\n")[0]
        entries = _entries(SHARED) | _entries(ReadingOptions.__doc__) | _entries(function.__doc__)
        own = inspect.signature(function, eval_str=True).parameters
        shared = inspect.signature(ReadingOptions, eval_str=True).parameters
        groups = {
            name: inspect.signature(one.annotation, eval_str=True).parameters
            for name, one in own.items()
            if name != "reading" and isinstance(one.annotation, type)
            if is_dataclass(one.annotation)
        }
        parameters = [one for one in own.values() if one.name not in ("reading", *groups)]
        for held, fields in groups.items():
            entries |= _entries(own[held].annotation.__doc__)
            parameters += fields.values()
        parameters += [one for one in shared.values() if one.name in reading.split()]

        def called(**given: Any) -> None:
            if "reading" in own:
                given["reading"] = ReadingOptions(
                    **{one: given.pop(one) for one in reading.split()}
                )
            for held, fields in groups.items():
                given[held] = own[held].annotation(**{one: given.pop(one) for one in fields})
            function(**given)

        explained = [_explained(one, entries) for one in parameters]
        called.__signature__ = inspect.Signature(explained)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in explained}
        group.command(name, help=text, cls=cls)(called)
        return function

    return add


@cache
def _entries(docstring: str | None) -> dict[str, tuple[str, ...]]:
    """The flag, metavar, lower bound and help of each parameter in a section "Options"."""
    section = (docstring or "").partition("Options:\n")[2]
    lines = re.split(r"\n(?=\S)", inspect.cleandoc(section))
    found = [_ENTRY.fullmatch(" ".join(one.split())) for one in lines]
    return {one[1]: one.groups("")[1:] for one in found if one}


def _explained(one: inspect.Parameter, entries: dict[str, tuple[str, ...]]) -> inspect.Parameter:
    """A parameter as typer takes it: by name, with its explanation in the place of its default."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    if get_origin(one.annotation) is Annotated:  # it explains itself
        return one.replace(kind=keyword)
    flag, metavar, least, text = entries[one.name]
    default = ... if one.default is one.empty else one.default
    if one.kind is not keyword:
        info = typer.Argument(default, metavar=metavar or None, help=text)
        return one.replace(kind=keyword, default=info)
    if one.annotation is bool and not flag:
        flag = "--" + one.name.replace("_", "-")
    flags = [flag] if flag else []
    bound = int(least) if least else None
    info = typer.Option(default, *flags, metavar=metavar or None, min=bound, help=text)
    return one.replace(default=info)


# --- Reading of files


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options for reading files, and for the model that reads them; each command has some.

    Options:
        format (FORMAT): The files' format; detected by default. See `confide data formats`.
        scheme (SCHEME): The tag scheme; detected by default.
        encoding (NAME): The files' encoding; UTF-8 by default.
        columns (TOKEN,TAG): Columns by number from 0 or by name; of a table of notes, ID,TEXT.
        annotators (RULE): Of several annotators: first, majority, or a name.
        language (CODE): Language of text without sentences: en, es, fr ... or auto.
        skip_broken: Name broken documents and leave them out.
        types (--type TYPE): An allowed type; repeat for more.
        bare_type (TYPE): The type for tags that are only B, I or O.
        wanted (--types TYPE,...):
            What is wanted: label entities or relations of these types alone.
        int8: Encoders in int8: faster on a processor, a little less exact.
    """

    format: str | None = None
    scheme: str | None = None
    encoding: str | None = None
    columns: str | None = None
    annotators: str | None = None
    language: str = "auto"
    skip_broken: bool = False
    types: list[str] | None = None
    bare_type: str = "entity"
    wanted: str | None = None
    key: Path | None = None
    int8: bool = False

    def options(self) -> Options:
        """Return the options for the readers. Raises SettingsError for columns of another form."""
        from confide.text.formats import Options

        return Options(
            scheme=self.scheme,
            encoding=self.encoding,
            columns=parse_columns(self.columns),
            annotators=self.annotators,
            skip_broken=self.skip_broken,
            language=self.language,
            types=None if self.types is None else frozenset(self.types),
            bare_type=self.bare_type,
        )

    def wanted_types(self) -> list[str] | None:
        """The labels among which a model decides; None: all."""
        return None if self.wanted is None else [one.strip() for one in self.wanted.split(",")]

    def models(self, run: Path, site: str | None) -> Path | Models:
        """The runs themselves or, if asked for in int8, their models. Raises as `load` does."""
        if not self.int8:
            return run
        from confide.runs.loading import open_models

        return open_models(run, site=site, key=self.key, types=self.wanted_types(), int8=True)

    def documents(self, files: Sequence[str]) -> Sequence[str | Document]:
        """The files themselves or, if more than their format was stated, their documents.

        Broken ones that were left out are named on stderr. Raises SettingsError for columns of
        another form, and as `read` does.
        """
        from confide.text.formats import Options

        if (options := self.options()) == Options():
            return files
        from confide.jobs.predict import read_sources

        problems: list[Problem] = []
        found = read_sources(files, format=self.format, options=options, problems=problems)
        broken = [one for one in problems if one.kind == "broken-document"]
        screen.say(*tables.problem_lines(broken))
        return found


def parse_columns(text: str | None) -> Columns | None:
    """Two columns, each a number or a name; the second may be `none`. Raises SettingsError.

    >>> parse_columns("0,-1"), parse_columns("words,none")
    ((0, -1), ('words', None))
    """
    if text is None:
        return None
    first, second = (part.strip() for part in text.partition(",")[::2])
    if not first or not second or "," in second:
        raise SettingsError(
            "--columns takes two columns", expected="TOKEN,TAG, such as 0,3", got=repr(text[:60])
        )

    def column(word: str) -> int | str:
        return int(word) if re.fullmatch(r"-?[0-9]{1,4}", word) else word

    return column(first), None if second == "none" else column(second)


def parse_names(given: Sequence[str] | None) -> dict[str, str]:
    """The names given by `--as FOUND=KNOWN`; an empty KNOWN drops a type. Raises SettingsError.

    >>> parse_names(["Drug=CHEMICAL", "Age="])
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


def parse_run_and_files(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The run, which comes first, and the files. Raises SettingsError if there is no file."""
    first, *others = words
    if not others:
        raise SettingsError(
            "no file is named", expected=f"{first} FILE...", fix="name a file, or - for stdin"
        )
    return Path(first), others
