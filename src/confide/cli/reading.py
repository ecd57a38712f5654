"""How files are read: options that the verbs about files share, handed to them as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from confide.cli.words import Encoding, Format, Language, Scheme, SkipBroken, Types
from confide.errors import SettingsError

if TYPE_CHECKING:
    from confide.text.document import Document, Problem
    from confide.text.formats import Columns, Options

_NO_TAGS = "none"


@dataclass(frozen=True, slots=True)
class SettingsHow:
    """What may be said about reading files and written into settings; `format` names the reader."""

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
        """The same for the readers. Raises SettingsError for columns of another form."""
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
class How(SettingsHow):
    """All that may be said about reading."""

    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="An allowed type; repeat for more."),
    ] = None
    bare_type: Annotated[
        str, typer.Option(metavar="TYPE", help="The type for tags that are only B, I or O.")
    ] = "entity"

    def options(self) -> Options:
        """The same for the readers. Raises SettingsError for columns of another form."""
        return replace(
            SettingsHow.options(self),
            types=None if self.types is None else frozenset(self.types),
            bare_type=self.bare_type,
        )


@dataclass(frozen=True, slots=True)
class NotesHow:
    """What may be said about reading text that a model annotates."""

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
        from confide.cli.putting import say_problems
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
class GoldHow:
    """What may be said about annotated text that a model is scored on."""

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
    """A verb with the options of `How`; its own parameter `how` gets what was said."""
    return reads_as(How)(verb)


def reads_as(
    form: type[SettingsHow] | type[NotesHow] | type[GoldHow],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What gives a verb the options of `form`; its own parameter `how` gets what was said."""
    return partial(_with_options, form)


def _with_options(
    form: type[SettingsHow] | type[NotesHow] | type[GoldHow], verb: Callable[..., None]
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
