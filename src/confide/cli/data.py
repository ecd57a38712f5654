"""The verbs `confide data …`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from confide import api
from confide.cli import screen, tables
from confide.cli.options import ReadingOptions, command
from confide.errors import DataError, FormatError, SettingsError

if TYPE_CHECKING:
    from confide.text.document import Problem

data = typer.Typer(no_args_is_help=True, help="Check, review, convert, split, count and label.")

_ANNOTATED = "format scheme encoding columns annotators language skip_broken types bare_type"
"""The options of verbs that read annotated files."""


@command(data, "check", reading=_ANNOTATED)
def data_check(
    files: list[Path],
    *,
    reading: ReadingOptions,
    every: bool = False,
    strict: bool = False,
    as_json: bool = False,
) -> None:
    """Report every annotation that reading loses or changes, and why.

    Options:
        every (--all): List every problem, not just a few.
    """
    with _strictly(strict):
        found = api.check(files, format=reading.format, options=reading.options())
    if as_json:
        names = ("format", "details", "counts", "types", "relations", "held_out", "crossings",
                 "words_cut", "problems")  # fmt: skip
        screen.put_json({name: getattr(found, name) for name in names})
    else:
        screen.show(
            *tables.check_tables(found),
            f"held out where no dev or test files are named: {found.held_out}",
            *tables.problem_lines(found.problems, most=None if every else 3),
            *tables.cut_lines(found.words_cut),
            *tables.crossing_lines(found.crossings),
        )
    _end_if_lost(found.problems, strict=strict)


@command(data, "convert", reading=_ANNOTATED)
def data_convert(
    files: list[Path],
    *,
    reading: ReadingOptions,
    to: str,
    out: Path,
    to_scheme: str = "iob2",
    strict: bool = False,
) -> None:
    """Convert files to another format and report what it cannot hold.

    Options:
        to (FORMAT[=MAP]): Output format; of fhir and note-nlp, with a map.
        out (PATH): Output file, or a folder for several.
        to_scheme (SCHEME): The tag scheme to write, for CoNLL.
    """
    how, options = reading.format, reading.options()
    kind, _, map = to.partition("=")
    with _strictly(strict):
        done = api.convert(
            files, kind, out, format=how, to_scheme=to_scheme, options=options, map=map or None
        )
    screen.say(*tables.problem_lines(done.problems))
    for path in done.paths:
        typer.echo(str(path))
    _end_if_lost(done.problems, strict=strict)


def _end_if_lost(problems: Sequence[Problem], *, strict: bool) -> None:
    """End with exit code 1 if anything was lost, or is not what the file says, under `strict`."""
    lost = sum(problem.lost or problem.kind == "text-mismatch" for problem in problems)
    if strict and lost:
        screen.say(f"{lost} lost or doubtful: --strict ends with exit code 1")
        raise typer.Exit(1)


@contextmanager
def _strictly(strict: bool) -> Iterator[None]:
    """Under `strict`, an error in a file ends with the message and exit code 1, as a loss does."""
    try:
        yield
    except (DataError, FormatError) as error:
        if not strict:
            raise
        screen.fail(error)
        raise typer.Exit(1) from error


@command(data, "review", reading=_ANNOTATED)
def data_review(out: Path, files: list[Path], *, reading: ReadingOptions, most: int = 500) -> None:
    """Write a page of documents in colour, problems first.

    Where several people annotated a document, their versions stand side by side.

    Options:
        out (OUT.html): The page to write.
        most (N >= 1): Show at most N documents.
    """
    page = api.review(out, files, format=reading.format, options=reading.options(), most=most)
    screen.say(f"written to {page}")


@command(data, "split")
def data_split(
    files: list[Path],
    *,
    sites: int,
    out: Path,
    by: str = "iid",
    alpha: float | None = None,
    seed: int = 1,
    format: str | None = None,
    to: str | None = None,
) -> None:
    """Deal a corpus to sites; the same seed, the same split.

    Options:
        sites (N): Number of sites.
        out (DIR): The folder for the sites' files.
        by (WAY): iid, file, domain, attribute=NAME, dirichlet, types, quantity or pair.
        alpha: For dirichlet and quantity: the smaller, the more uneven; for types, types a site.
        seed: The same seed gives the same split.
        to (FORMAT): Output format; the input's by default.
    """
    dealt = api.split(files, sites, by=by, alpha=alpha, seed=seed, out=out, format=format, to=to)
    screen.show(tables.share_table(dealt))
    screen.say(f"written to {out}, described in {out / 'split.json'}")


@command(data, "stats")
def data_stats(
    files: list[Path],
    *,
    format: str | None = None,
    scheme: str | None = None,
    language: str = "auto",
    as_json: bool = False,
) -> None:
    """Count documents, tokens, entities, relations, pairs and repeated sentences."""
    found = api.stats(files, format=format, scheme=scheme, language=language)
    screen.answer(found.to_json(), *tables.statistics_tables(found), as_json=as_json)


@command(data, "formats")
def data_formats(*, as_json: bool = False) -> None:
    """List the formats that confide reads and writes."""
    from confide.text.formats import FORMATS

    names = [{"name": one.name, "title": one.title} for one in FORMATS.values()]
    screen.answer(names, tables.format_table(FORMATS.values()), as_json=as_json)


_MATCHED = {
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
"""The counts of `confide data label`, in words."""


@command(data, "label")
def data_label(
    files: list[Path],
    *,
    kb: Path,
    out: Path,
    by: Literal["concept", "letters"] = "concept",
    types: tuple[str, str] | None = None,
    na: str = "1",
    max_sentences: int = 0,
    recogniser: Path | None = None,
) -> None:
    """Label text from a knowledge base, as bags of sentences.

    Options:
        kb (TSV): Triples: head, relation, tail, separated by tabs.
        out (FILE): File for the bags, in confide's JSON Lines.
        by: Match triples by the identifiers of mentions or by their words.
        types (--types HEAD TAIL): Entity types; by default, those of matched triples.
        na (SHARE[:SEED]): Share to keep of the pairs without a triple.
        max_sentences (N): At most N sentence ends between head and tail.
        recogniser (RUN): A run that marks the entities first.
    """
    share, seed = parse_share(na)
    if recogniser is None:
        readings = [api.read(file) for file in files]
        problems = [problem for reading in readings for problem in reading.problems]
        screen.say(*tables.problem_lines(problems))
        documents = [document for reading in readings for document in reading.documents]
    else:
        documents = api.predict(recogniser, files)
    done = api.label(
        documents, kb, by=by, types=types, na=share, max_sentences=max_sentences, seed=seed
    )
    problems = [*done.problems, *api.write(done.documents, out, "jsonl")]
    screen.say(*tables.problem_lines(problems))
    sentences = {name: f"{number:,}" for name, number in done.relations.items()}
    sentences["all"] = f"{len(done.documents):,}"
    counts = {words: f"{done.counts[name]:,}" for name, words in _MATCHED.items()}
    screen.show(
        tables.mapping(sentences, columns=("relation", "sentences"), title="Sentences"),
        tables.mapping(counts, columns=("", "count"), title="What matched"),
    )
    if not done.counts["triples"]:
        screen.say("no triple was found; check that --by says how the triples name entities")
    screen.say(f"written to {out}")


def parse_share(text: str) -> tuple[float, int]:
    """Read SHARE or SHARE:SEED; the seed is 1 by default. Raises SettingsError.

    >>> parse_share("0.25"), parse_share("0.25:7")
    ((0.25, 1), (0.25, 7))
    """
    share, _, seed = text.partition(":")
    try:
        return float(share), int(seed or 1)
    except ValueError as error:
        raise SettingsError(
            "--na takes a share of pairs, and optionally a colon and a seed",
            expected="a value such as 0.25 or 0.25:7",
            got=repr(text),
        ) from error
