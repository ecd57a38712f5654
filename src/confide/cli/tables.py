"""Tables and lines for people, each of what a public function returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from confide.cli.screen import isolate
from confide.words import count, duration, points, size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from confide.corpora.dealing import SplitReport
    from confide.corpora.statistics import Stats
    from confide.federation.comparing import LedgerDifference
    from confide.federation.ledger import LedgerRow
    from confide.federation.steps import WireRow
    from confide.jobs.comparison import Difference, RunComparison, SideScore
    from confide.jobs.demo import DemoExample, DemoPart, DemoResult
    from confide.jobs.initialise_files import NameMatch
    from confide.jobs.models import ModelInfo
    from confide.runs.folder import AtHome
    from confide.runs.result import Result
    from confide.scoring.counts import Scored
    from confide.text.checking import CheckReport
    from confide.text.document import Problem
    from confide.text.reading import Format
    from confide.text.segment import Crossing, WordsCut


def table_of(
    columns: Sequence[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    title: str = "",
    right: Collection[str] = (),
    totals: Iterable[Iterable[str]] = (),
    caption: str = "",
) -> Table:
    """A table in the style of all tables.

    The columns named in `right` are aligned on the right; `totals` are bold rows below the others.
    """
    table = Table(
        title=title or None,
        caption=caption or None,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
    )
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    table.add_section()
    for row in totals:
        table.add_row(*row, style="bold")
    return table


# --- Records: recipes, wire tables, ledgers

_RIGHT = {"bytes", "again", "count", "sites", "rounds", "sentences", "support"}


def record_table(
    records: Sequence[DataclassInstance], *, title: str = "", without: Collection[str] = ()
) -> Table:
    """One column per field of the dataclass, one row per record."""
    names = [one.name for one in fields(records[0])] if records else []
    names = [name for name in names if name not in without]
    cells = [[_cell(name, getattr(record, name)) for name in names] for record in records]
    return table_of(names, cells, title=title, right=_RIGHT)


def model_table(models: Sequence[ModelInfo]) -> Table:
    """The public models: which are here, their sizes, licences and digests."""
    rows = (
        (one.name, one.title, "yes" if one.place else "no", size(one.download), size(one.bytes),
         one.licence, one.digest[:16])
        for one in models
    )  # fmt: skip
    return table_of(
        ("name", "what it is", "here", "download", "on disk", "licence", "SHA-256"),
        rows,
        right=("download", "on disk"),
        caption="`confide models get NAME` downloads one; --json prints where they lie",
    )


def field_table(rows: Sequence[WireRow | LedgerRow], *, title: str, both: bool) -> Table:
    """The fields of a wire table or a ledger: what left the sites, or both directions."""
    shown = [row for row in rows if both or row.direction == "up"]
    again = any(getattr(row, "again", 0) for row in shown)
    without = [*([] if both else ["direction"]), *([] if again else ["again"])]
    table = record_table(shown, title=title, without=without)
    table.caption = "one by one: the server sees each site's value; sum: its code sees the sum only"
    sizes = dict.fromkeys(("up", "down"), 0)
    for row in rows:
        sizes[row.direction] += getattr(row, "bytes", 0)
    if any(sizes.values()):
        table.caption += f"\ntotal: {size(sizes['up'])} up, {size(sizes['down'])} down"
    if again:
        table.caption += "\nagain: sent again in rounds repeated after a crash"
    return table


def two_ledgers(found: LedgerDifference) -> str:
    """Text that says whether two ledgers of one run agree."""
    lines = [f"{found.site}: {found.messages} entries of its own, {found.again} of them resent"]
    if found.verified:
        lines.append(f"{found.verified} signatures verified")
    else:
        lines.append("no signatures: only the numbers were compared")
    if found.unheard:
        lines.append(f"asks that were sent but that a site never received: {found.unheard}")
    if found.faults:
        lines += [f"first difference: {found.faults[0]}", *found.faults[1:]]
    lines += [f"only in the run's ledger: {one}" for one in found.only_here]
    lines += [f"only in the site's ledger: {one}" for one in found.only_there]
    lines.append("the two agree" if found.agree else "the two do NOT agree")
    return "\n".join(lines)


def _cell(name: str, value: object) -> str:
    if name in ("bytes", "again") and isinstance(value, int):
        return size(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


# --- Files and corpora


def mapping(values: Mapping[str, object], *, columns: tuple[str, str], title: str = "") -> Table:
    """A table of two columns: a name and its value."""
    cells = [(str(name), _cell(columns[1], value)) for name, value in values.items()]
    return table_of(columns, cells, title=title, right=columns[1:])


def survey_tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Tables of a survey: text, entities by type, and surfaces that sites have in common."""
    totals = {name: found[name] for name in ("documents", "sentences", "tokens")}
    title = f"Training text of {found['sites']} sites together"
    yield mapping(totals, columns=("text", "count"), title=title)
    columns = ("entities", "sites", "surfaces", "at two or more", "mentions", "of those at two")
    surfaces = found.get("surfaces")
    every = {**found["types"], "all": found} if surfaces else found["types"]
    rows = []
    for name, one in every.items():
        told = one.get("entities")
        common = [count(value) for value in (one.get("surfaces") or {}).values()] or [""] * 4
        rows.append((name, "" if told is None else count(told), str(one["sites"]), *common))
    shown = columns if surfaces else columns[:2]
    yield table_of(("type", *shown), (row[: 1 + len(shown)] for row in rows), right=shown)


def check_tables(found: CheckReport) -> Iterator[Table]:
    """Tables of how files were read, of their contents, and of entities and relations by type."""
    yield table_of(("file", "read as"), found.details.items())
    yield mapping(found.counts, columns=("total", ""))
    yield mapping(found.types, columns=("type", "entities"))
    if found.relations:
        yield mapping(found.relations, columns=("relation", "relations"))


def format_table(known: Iterable[Format]) -> Table:
    """The file formats: the name that --format takes, what it is, and whether it is written."""
    return table_of(
        ("format", "what", "written"),
        ((one.name, one.title, "yes" if one.write else "") for one in known),
        title="file formats, found from a file's content unless --format names one",
    )


def share_table(dealt: SplitReport) -> Table:
    """A table of each site's share of a corpus."""
    kinds = sorted({kind for share in dealt.sites.values() for kind in share.entities})
    links = sorted({kind for share in dealt.sites.values() for kind in share.relations})
    columns = ["site", "documents", "sentences", *kinds, *links]
    rows = []
    for site, share in dealt.sites.items():
        entities = (share.entities.get(kind, 0) for kind in kinds)
        relations = (share.relations.get(kind, 0) for kind in links)
        counts = (share.documents, share.sentences, *entities, *relations)
        rows.append([site, *map(count, counts)])
    title = f"dealt by {dealt.by}, seed {dealt.seed}"
    return table_of(columns, rows, title=title, right=columns[1:])


_SIZES = (
    "documents", "sentences", "sentences_with_entities", "tokens", "distinct_tokens",
    "nested", "overlapping", "discontinuous", "repeated",
)  # fmt: skip


def statistics_tables(found: Stats) -> Iterator[Table]:
    """Counts per file and in all: sizes, entities and relations, then repeated sentences."""
    files = {**found.files, "all": found.total} if len(found.files) > 1 else found.files
    names = dict(zip(files, short_paths(files), strict=True))

    def per_file(title: str, rows: Mapping[str, Iterable[int]]) -> Table:
        cells = ([name, *map(count, counts)] for name, counts in rows.items())
        return table_of(["", *names.values()], cells, title=title, right=[*names.values()])

    each, total = files.values(), found.total
    sizes = {name: [getattr(file, name) for file in each] for name in _SIZES}
    yield per_file("sizes", {name.replace("_", " "): row for name, row in sizes.items()})
    types = {type: [file.entities.get(type, 0) for file in each] for type in total.entities}
    yield per_file("entities", types)
    if total.relations or total.pairs:
        links = {type: [file.relations.get(type, 0) for file in each] for type in total.relations}
        yield per_file("relations", links | {"pairs looked at": [file.pairs for file in each]})
    if found.shared:
        yield table_of(
            ("file", "and file", "sentences"),
            ((names[one], names[two], count(n)) for (one, two), n in found.shared.items()),
            title="sentences in both files",
            right=_RIGHT,
        )


def short_paths(paths: Iterable[str]) -> list[str]:
    """Paths without the folders that all of them share.

    >>> short_paths(["data/a/train.tsv", "data/b/train.tsv", "all"])
    ['a/train.tsv', 'b/train.tsv', 'all']
    """
    given = list(paths)
    folders = [str(Path(path).parent) for path in given if path != "all"]
    mixed = len({Path(folder).is_absolute() for folder in folders}) > 1
    shared = commonpath(folders) if len(folders) > 1 and not mixed else ""
    inside = [bool(shared) and Path(path).is_relative_to(shared) for path in given]
    return [
        str(Path(path).relative_to(shared)) if within else path
        for path, within in zip(given, inside, strict=True)
    ]


def match_table(maps: Sequence[NameMatch], *, most: int = 3) -> Table:
    """Types that sites name differently, each with its common name and what says so."""
    rows = []
    for match in maps:
        shown = ", ".join(match.shared[:most])
        further = len(match.shared) - most
        words = f"{shown} and {further} more" if further > 0 else shown or "(the same name)"
        shares = [f"{share:.0%}" for share in (match.agreement, match.next_best) if match.shared]
        rows.append((match.site, match.name, match.common, words, *shares))
    return table_of(
        ("site", "its name", "common name", "marked by both", "alike", "next"),
        rows,
        title="One thing under two names",
        right=("alike", "next"),
        caption="alike: of the words of both texts that either site marks so, the share that both"
        " mark; next: that of the best other pair\nwritten as `tags` of the site: change or delete"
        " them there; --no-map writes none",
    )


def problem_lines(problems: Sequence[Problem], *, most: int | None = 3) -> Iterator[Text]:
    """Lines with the number of problems of each kind, and the first `most` of each (None: all)."""
    for kind, number in Counter(problem.kind for problem in problems).most_common():
        same = [problem for problem in problems if problem.kind == kind]
        if number == 1:
            what = f": {same[0].where}: {isolate(same[0].what)}"
            yield Text.assemble((kind, "bold yellow"), what)
            continue
        lost = sum(problem.lost for problem in same)
        yield Text(f"{kind}: {number}" + (f", {lost} lost" if lost else ""), style="bold yellow")
        for problem in same[:most]:
            yield Text(f"  {problem.where}: {isolate(problem.what)}")
        if most is not None and number > most:
            yield Text(f"  … and {number - most} more", style="dim")


def crossing_lines(crossings: Mapping[str, Crossing]) -> Iterator[Text]:
    """A warning for each type whose entities often cross the end of a sentence, and what to do."""
    for type, one in crossings.items():
        share = 100 * one.crossing / one.entities
        words = ", ".join(f"{isolate(word)} ({count})" for word, count in one.before.items())
        what = (
            f": {one.crossing} of {one.entities} ({share:.1f} %) cross the end of a sentence, after"
            f" {words}"
        )
        yield Text.assemble((type, "bold yellow"), what)
    if crossings:
        yield Text(
            "Such entities are neither learnt nor found. State the language, name abbreviations"
            " that end no sentence (data.abbreviations), or take each line as a sentence"
            ' (data.sentences = "lines").'
        )


def cut_lines(found: WordsCut) -> Iterator[Text]:
    """Lines on words that raw text cuts differently inside entities, and what that means."""
    if found.cut:
        what = (
            f": raw text has {found.cut} of {found.words} ({100 * found.share:.1f} %) words in"
            ' entities otherwise than these files; data.train_on = "own tokens" learns what raw'
            " text has"
        )
        yield Text.assemble(("tokens", "bold yellow"), what)


# --- Scores

_SCORED = {
    "strict": ("type", "entities", "strict: same type, same characters; relaxed: overlap"),
    "micro": (
        "relation",
        "relations",
        "micro: all relations together; macro: the mean over the relations",
    ),
    "end to end": (
        "relation",
        "relations",
        "strict: the same relation, and both entities have the same type and the same characters;"
        " relaxed: both overlap",
    ),
}
"""By first kind of score or "end to end": what a row is, what is counted, what the kinds mean."""


def score_table(values: Scored, *, title: str = "", of: str = "") -> Table:
    """Precision, recall and F1 in percent, for each type of entity or each relation and in all.

    Entities are counted strict and relaxed; relations have a micro- and a macro-average. With `of`
    "end to end", relations between entities that a model found are counted as entities are.
    """
    from confide.tasks import task_of_scores

    if "curve" in values:
        return _ranked(values, title)
    kinds = task_of_scores(values).kinds
    typed = [kind for kind in kinds if "types" in values[kind]]
    one, many, meaning = _SCORED.get(of or kinds[0], _SCORED["strict"])
    if missed := sum(values.get("missed", {}).values()):
        meaning += f"\nmissed because their pair was not looked at: {count(missed)}"
    rates = [
        f"{kind} P" if name == "P" and len(typed) > 1 else name
        for kind in typed
        for name in ("P", "R", "F1")
    ]
    rows = []
    for name, found in values[kinds[0]].get("types", {}).items():
        parts = [values[kind].get("types", {}).get(name, {}) for kind in typed]
        rows.append([name, *_precision_recall_f1(parts), str(found.get("support", 0))])
    support = str(values[kinds[0]].get("support", 0))
    if typed == list(kinds):
        totals = [["all", *_precision_recall_f1(values[kind] for kind in kinds), support]]
    else:
        totals = [
            [kind, *_precision_recall_f1([values[kind]]), support if kind in typed else ""]
            for kind in kinds
        ]
    return table_of(
        [one, *rates, many],
        rows,
        title=title,
        right=[*rates, many],
        totals=totals,
        caption=f"in percent; {meaning}",
    )


def _ranked(values: Scored, title: str) -> Table:
    """The scores of bags: each relation by the bags' best labels, then areas and P@N."""
    micro = values["micro"]
    table = table_of(
        ("relation", "P", "R", "F1", "facts"),
        (
            (name, *_precision_recall_f1([rates]), str(rates["support"]))
            for name, rates in micro["types"].items()
        ),
        title=title,
        right=("P", "R", "F1", "facts"),
        totals=[("all", *_precision_recall_f1([micro]), str(micro["support"]))],
        caption=f"in percent; the likeliest relation of each of {count(values['bags'])} bags\n"
        "AUC: area under the whole precision-recall curve; first 2,000: under its first part\n"
        "P@N: share of facts among the first N predictions",
    )
    table.add_section()
    table.add_row("AUC", "", "", points(values["auc"]), "", style="bold")
    table.add_row("first 2,000", "", "", points(values["auc_2000"]), "")
    for name, share in values["precision_at"].items():
        table.add_row("mean P@N" if name == "mean" else f"P@{name}", "", "", points(share), "")
    return table


def _precision_recall_f1(parts: Iterable[Scored]) -> list[str]:
    return [points(part.get(name)) for part in parts for name in ("precision", "recall", "f1")]


def site_table(result: Result) -> Table:
    """A run's scores on test text, per site and in all, with what each site sent and received."""
    from confide.tasks import TASKS, task_of_scores

    overall, task = result.scores.overall, TASKS[result.task]
    scored = task_of_scores(overall)
    columns = ["site", *map(task.words.kind, scored.kinds), scored.unit, "sent", "received"]
    ways = (result.bytes.up, result.bytes.down) if result.bytes else ({}, {})

    def row(name: str, values: Scored, moved: Iterable[int | None]) -> list[str]:
        of = task_of_scores(values)
        each = [None if of.empty(values) else of.value(values, kind) for kind in of.kinds]
        return [name, *map(points, each), str(values.get(of.unit, "")), *map(size, moved)]

    captions = ["no test text, so there are no scores"] if task.empty(overall) else []
    if own := result.privacy:
        spent = f"under noise: ε = {own.epsilon:.3g} at δ = {own.delta:g} for one {own.unit}"
        unsafe = ", with keys from the seed: nothing is promised" if own.simulated else ""
        captions.append(spent + unsafe)
    return table_of(
        columns,
        (
            row(site, values, [sums.get(site) for sums in ways])
            for site, values in result.scores.sites.items()
        ),
        title=f"{result.method}: {task.words.score or 'scores'} on test text, in percent",
        right=columns[1:],
        totals=[row("all", overall, [sum(sums.values()) for sums in ways])],
        caption="\n".join(captions),
    )


def comparison_table(found: RunComparison) -> Table:
    """By site: the F1 of two sides in percent, their difference, its interval and a verdict."""
    first, second = short_paths([found.first, found.second])
    repeats = len(found.pairs)
    caption = (
        f"difference: {second} minus {first}; {count(found.samples)} resamples of {found.unit}"
    )
    if repeats > 1:
        caption += f" over all {repeats} runs\n±: mean and standard deviation of {repeats} runs"
        caption += "" if found.same_text else ", each with its own held-out text"
    kind = "F1 of the likeliest labels" if found.matching == "best" else f"{found.matching} F1"
    interval = f"{100 * found.level:g}% interval"
    columns = ["site", found.unit, first, second, "difference", interval, "p", ""]

    def row(name: str, one: Difference) -> list[str]:
        clear = one.verdict != "no clear difference"
        return [
            name,
            count(one.sentences),
            _side(one.first),
            _side(one.second),
            _signed(one.difference),
            f"{_signed(one.low)} to {_signed(one.high)}",
            f"{one.p:.2g}",
            f"{second} is {one.verdict}" if clear else one.verdict,
        ]

    return table_of(
        columns,
        (row(site, one) for site, one in found.sites.items()),
        title=f"{kind} on test text, in percent",
        right=columns[1:-1],
        totals=[row("all", found.overall)],
        caption=caption,
    )


def _side(score: SideScore) -> str:
    spread = "" if score.deviation is None else f" ± {points(score.deviation)}"
    return points(score.mean) + spread


def _signed(difference: float) -> str:
    shown = f"{100 * difference:+.1f}"
    return "0.0" if float(shown) == 0 else shown


def home_table(found: Mapping[str, AtHome], *, first: str = "site") -> Table:
    """A table of the models that each site compared, or one site after each run, in percent."""
    from confide.runs.folder import CANDIDATES

    rows = []
    for title, one in found.items():
        models = [one.candidates.get(name) for name in CANDIDATES]
        cells = [f"{points(m.dev)} / {points(m.test)}" if m else points(None) for m in models]
        undecided = " (too little to tell)" if one.undecided else ""
        rows.append([title, *cells, one.kept + undecided])
    title = "Score on development text / test text, in percent"
    return table_of([first, *CANDIDATES, "keeps"], rows, title=title, right=CANDIDATES)


# --- The end of `confide demo`


def demonstration(shown: DemoResult) -> Iterator[RenderableType]:
    """Scores, what the model finds in held-out sentences, what left the sites, what to do next."""
    from confide.report.folder import left, load_run, results

    runs = {name: load_run(path) for name, path in shown.runs.items()}
    yield Text("\nSYNTHETIC text from three made-up sites: scores say nothing about real notes.\n")
    yield results(runs, title="Does training together help?")
    yield _example_table(shown.examples)
    yield left(runs["federated"], title="What left the sites in the federated run")
    if len(shown.parts) > 1:
        yield _method_table(shown.parts)
    yield Text.assemble(
        f"\nDone in {duration(shown.seconds)}. Open ",
        (str(shown.page), "bold"),
        " in a browser, or continue:\n\n",
        f"  confide predict {shown.runs['federated']} FILE.txt\n",
        f"  confide ledger {shown.runs['federated']}\n",
        "  confide init YOUR_FILES\n",
        "" if len(shown.parts) > 1 else "  confide demo --all     # the methods of five papers\n",
    )


def _method_table(parts: Iterable[DemoPart]) -> Table:
    """The five parts: the method, its score on test text beside those to compare, what left."""
    rows = []
    for part in parts:
        scores = [part.scores.get("alone"), part.scores[part.federated]]
        sent = size(sum(part.bytes.values()))
        rows.append((part.method, part.title, part.score, *map(points, scores), sent))
    columns = ("method", "shows", "score", "alone", "together", "left the sites")
    title = "Five methods, and what left the sites under each"
    return table_of(columns, rows, title=title, right=columns[3:])


def _example_table(examples: Iterable[DemoExample]) -> Table:
    """One held-out sentence per site: each marked mention, what the model says, how sure it is."""
    columns = ("site", "words", "marked as", "found as", "confidence")
    title = "What the federated model finds in held-out sentences"
    table = table_of(columns, (), title=title, right=columns[4:])
    for example in examples:
        table.add_row(example.site, Text(example.text, style="italic"))
        for mark in example.marks:
            answer = (Text("not found", style="dim"), "")
            if mark.found:
                colour = "green" if mark.found == mark.marked else "red"
                answer = (Text(mark.found, style=colour), points(mark.confidence))
            table.add_row("", Text(f"  {mark.words}"), mark.marked, *answer)
        table.add_section()
    return table
