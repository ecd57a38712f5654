"""The verbs `confide data …`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from confide.cli import screen
from confide.cli.files import (
    ReadingOptions,
    crossing_lines,
    cut_lines,
    problem_lines,
    reads,
    say_problems,
)
from confide.cli.screen import Format, Json, Language, Scheme
from confide.errors import DataError, FormatError, SettingsError

if TYPE_CHECKING:
    from confide.corpora.distant import Labelled
    from confide.text.document import Document, Problem


data = typer.Typer(no_args_is_help=True, help="Check, review, convert, split, count and label.")

By = Literal["iid", "file", "domain", "dirichlet", "quantity", "pair"]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Annotated files.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="End with exit code 1 if anything is lost or doubtful.")
]


@data.command("check")
@reads
def check(
    files: Files,
    *,
    how: ReadingOptions,
    every: Annotated[
        bool, typer.Option("--all", help="List every problem, not just a few.")
    ] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Report every annotation lost or changed in reading: file, line or offset, and why."""
    from confide import api
    from confide.cli import tables

    with _unreadable_is_lost(strict=strict):
        found = api.check(files, format=how.format, options=how.options())
    if as_json:
        names = ("format", "details", "counts", "types", "relations", "held_out", "crossings",
                 "words_cut", "problems")  # fmt: skip
        screen.put_json({name: getattr(found, name) for name in names})
    else:
        lines = problem_lines(found.problems, most=None if every else 3)
        lines += cut_lines(found.words_cut)
        held = f"held out where no dev or test files are named: {found.held_out}"
        screen.show(*tables.checked(found), held, *lines, *crossing_lines(found.crossings))
    _end_if_lost(found.problems, strict=strict)


@data.command("convert")
@reads
def convert(
    files: Files,
    *,
    how: ReadingOptions,
    to: Annotated[str, typer.Option(metavar="FORMAT", help="Output format.")],
    out: Annotated[
        Path, typer.Option(metavar="PATH", help="Output file, or a folder for several.")
    ],
    to_scheme: Annotated[
        str, typer.Option(metavar="SCHEME", help="The tag scheme to write, for CoNLL.")
    ] = "iob2",
    strict: Strict = False,
) -> None:
    """Convert files to another format and report what it cannot hold."""
    from confide import api

    with _unreadable_is_lost(strict=strict):
        done = api.convert(
            files, to, out, format=how.format, to_scheme=to_scheme, options=how.options()
        )
    say_problems(done.problems)
    for path in done.paths:
        typer.echo(str(path))
    _end_if_lost(done.problems, strict=strict)


@data.command("review")
@reads
def review(
    out: Annotated[Path, typer.Argument(metavar="OUT.html", help="The page to write.")],
    files: Files,
    *,
    how: ReadingOptions,
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N documents.")] = 500,
) -> None:
    """Write a page of documents with their annotation in colour, problems first.

    Where several people annotated a document, their versions stand side by side.
    """
    from confide import api

    page = api.review(out, files, format=how.format, options=how.options(), most=most)
    screen.say(f"written to {page}")


def _end_if_lost(problems: Sequence[Problem], *, strict: bool) -> None:
    """End with exit code 1 if anything was lost, or is not what the file says, under `strict`."""
    lost = sum(problem.lost or problem.kind == "text-mismatch" for problem in problems)
    if strict and lost:
        screen.say(f"{lost} lost or doubtful: --strict ends with exit code 1")
        raise typer.Exit(1)


@contextmanager
def _unreadable_is_lost(*, strict: bool) -> Iterator[None]:
    """Under `strict`, an error in a file ends with the message and exit code 1, as a loss does."""
    try:
        yield
    except (DataError, FormatError) as error:
        if not strict:
            raise
        screen.fail(error)
        raise typer.Exit(1) from error


@data.command("split")
def split(
    files: Files,
    *,
    sites: Annotated[int, typer.Option(metavar="N", help="Number of sites.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the sites' files.")],
    by: Annotated[By, typer.Option(help="How to deal the documents.")] = "iid",
    alpha: Annotated[
        float | None, typer.Option(help="For dirichlet and quantity: the smaller, the more uneven.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same split.")] = 1,
    format: Format = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Output format; the input's by default.")
    ] = None,
) -> None:
    """Deal a corpus to sites, reproducibly: one file or folder each."""
    from confide import api
    from confide.cli import tables

    dealt = api.split(files, sites, by=by, alpha=alpha, seed=seed, out=out, format=format, to=to)
    screen.show(tables.shares(dealt))
    screen.say(f"written to {out}, described in {out / 'split.json'}")


@data.command("stats")
def stats(
    files: Files,
    *,
    format: Format = None,
    scheme: Scheme = None,
    language: Language = "auto",
    as_json: Json = False,
) -> None:
    """Count documents, tokens, entities, relations, pairs and repeated sentences."""
    from confide import api
    from confide.cli import tables

    found = api.stats(files, format=format, scheme=scheme, language=language)
    screen.answer(found.to_json(), *tables.statistics(found), as_json=as_json)


@data.command("formats")
def formats(*, as_json: Json = False) -> None:
    """List the formats that confide reads and writes."""
    from confide.cli import tables
    from confide.text.formats import FORMATS

    found = tuple(FORMATS.values())
    if as_json:
        screen.put_json([{"name": one.name, "title": one.title} for one in found])
    else:
        screen.show(tables.formats(found))


@data.command("label")
def label(
    files: Files,
    *,
    kb: Annotated[
        Path, typer.Option(metavar="TSV", help="Triples: head, relation, tail, separated by tabs.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the bags: OpenNRE's JSON Lines.")
    ],
    by: Annotated[
        Literal["concept", "letters"],
        typer.Option(help="Match triples by the identifiers of mentions or by their words."),
    ] = "concept",
    types: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="HEAD TAIL", help="Entity types; by default, those of matched triples."
        ),
    ] = None,
    na: Annotated[
        str,
        typer.Option(metavar="SHARE[:SEED]", help="Share to keep of the pairs without a triple."),
    ] = "1",
    max_sentences: Annotated[
        int, typer.Option(metavar="N", help="At most N sentence ends between head and tail.")
    ] = 0,
    recogniser: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run that marks the entities first.")
    ] = None,
) -> None:
    """Label text from a knowledge base: sentences that name both ends of a triple form bags."""
    from confide import api

    share, seed = share_and_seed(na)
    if recogniser is None:
        documents = documents_of(files)
    else:
        documents = api.predict(recogniser, files)
    done = api.label(
        documents, kb, by=by, types=types, na=share, max_sentences=max_sentences, seed=seed
    )
    say_problems([*done.problems, *api.write(done.documents, out, "jsonl")])
    screen.show(*labelled(done))
    if not done.counts["triples"]:
        screen.say("no triple was found; check that --by says how the triples name entities")
    screen.say(f"written to {out}")


# --- Reading and tables of `confide data label`


_WORDS = {
    "documents": "documents",
    "mentions": "mentions of entities",
    "unidentified": "of them skipped, having no identifier",
    "ambiguous_forms": "words with several identifiers",
    "ambiguous_mentions": "mentions of such words",
    "repeated": "pairs of mentions passed over for a nearer one in the same text",
    "known": "triples in the knowledge base",
    "triples": "of them found",
    "unmentioned": "of them with an end that no text mentions",
    "apart": "of them with both ends mentioned, but never together",
    "pairs": "pairs with a relation",
    "several": "of them with more than one",
    "na_pairs": "pairs without a relation (NA)",
    "na_left": "further ones not drawn",
    "na_types": "further ones whose types match no triple",
}


def documents_of(files: Sequence[Path]) -> list[Document]:
    """Read the documents of files, and report on stderr what was lost or changed."""
    from confide import api

    readings = [api.read(file) for file in files]
    say_problems([problem for reading in readings for problem in reading.problems])
    return [document for reading in readings for document in reading.documents]


def share_and_seed(given: str) -> tuple[float, int]:
    """Read SHARE or SHARE:SEED; the seed is 1 by default. Raises SettingsError.

    >>> share_and_seed("0.25"), share_and_seed("0.25:7")
    ((0.25, 1), (0.25, 7))
    """
    share, _, seed = given.partition(":")
    try:
        return float(share), int(seed or 1)
    except ValueError as error:
        raise SettingsError(
            "--na takes a share of pairs, and optionally a colon and a seed",
            expected="a value such as 0.25 or 0.25:7",
            got=repr(given),
        ) from error


def labelled(done: Labelled) -> Iterator[Table]:
    """Two tables: sentences by relation, and what matched."""
    relations = Table("relation", title="Sentences")
    relations.add_column("sentences", justify="right")
    for name, number in done.relations.items():
        relations.add_row(name, f"{number:,}")
    relations.add_row("all", f"{len(done.documents):,}")
    yield relations
    counts = Table("", title="What matched")
    counts.add_column("count", justify="right")
    for name, words in _WORDS.items():
        counts.add_row(words, f"{done.counts[name]:,}")
    yield counts
