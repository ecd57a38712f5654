"""Tables for people: each takes what a public function returned and gives a table to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from confide.report.words import count, duration, points, size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from confide.corpora.dealing import SplitReport
    from confide.corpora.statistics import Stats
    from confide.federation.comparing import LedgerDifference
    from confide.federation.ledger import LedgerRow
    from confide.federation.steps import WireRow
    from confide.jobs.comparison import Difference, RunComparison, SideScore
    from confide.jobs.demo import DemoResult, Example, Mark, Part
    from confide.jobs.initialise_files import Match
    from confide.runs.folder import AtHome
    from confide.runs.result import Result
    from confide.scoring.counts import Scored
    from confide.text.checking import CheckReport
    from confide.text.reading import Format


_RIGHT = {"bytes", "again", "count", "sites", "rounds", "sentences", "support"}


def rows(
    records: Sequence[DataclassInstance], *, title: str = "", without: Sequence[str] = ()
) -> Table:
    """One column per field of the dataclass, one row per record."""
    table = titled(title)
    known = [field.name for field in fields(records[0])] if records else []
    names = [name for name in known if name not in without]
    for name in names:
        table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    for record in records:
        table.add_row(*(_cell(name, getattr(record, name)) for name in names))
    return table


def crossed(fields: Sequence[WireRow | LedgerRow], *, title: str, both: bool) -> Table:
    """The fields of a wire table or a ledger: what left the sites, or both directions."""
    shown = [field for field in fields if both or field.direction == "up"]
    again = any(getattr(field, "again", 0) for field in shown)
    without = [*([] if both else ["direction"]), *([] if again else ["again"])]
    table = rows(shown, title=title, without=without)
    table.caption = "one by one: the server sees each site's value; sum: its code sees the sum only"
    sizes = dict.fromkeys(("up", "down"), 0)
    for field in fields:
        sizes[field.direction] += getattr(field, "bytes", 0)
    if any(sizes.values()):
        table.caption += f"\ntotal: {size(sizes['up'])} up, {size(sizes['down'])} down"
    if again:
        table.caption += "\nagain: sent again in rounds repeated after a crash"
    return table


def named_alike(maps: Sequence[Match], *, most: int = 3) -> Table:
    """Types that sites name differently, each with its common name and what says so."""
    table = titled(
        "One thing under two names",
        caption="alike: of the words of both texts that either site marks so, the share that both"
        " mark; next: that of the best other pair\nwritten as `tags` of the site: change or delete"
        " them there; --no-map writes none",
    )
    for name in ("site", "its name", "common name", "marked by both", "alike", "next"):
        right = name in ("alike", "next")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for match in maps:
        shown = ", ".join(match.shared[:most])
        further = len(match.shared) - most
        told = f"{shown} and {further} more" if further > 0 else shown or "(the same name)"
        shares = [f"{share:.0%}" for share in (match.agreement, match.next_best) if match.shared]
        table.add_row(match.site, match.name, match.common, told, *shares)
    return table


def scores(values: Scored, *, title: str = "", of: str = "") -> Table:
    """Precision, recall and F1 in percent, for each type of entity or each relation and in all.

    Entities are counted strict and relaxed; relations have a micro- and a macro-average. With `of`
    "end to end", relations between entities that a model found are counted as entities are.
    """
    kinds = _kinds(values)
    if "curve" in values:
        return _ranked(values, title)
    typed = [kind for kind in kinds if "types" in values[kind]]
    one, many, told = _SCORED.get(of or kinds[0], _SCORED["strict"])
    table = titled(title, caption=f"in percent; {told}{_overlooked(values)}")
    table.add_column(one)
    for kind in typed:
        for name in ("P", "R", "F1"):
            first = f"{kind} P" if name == "P" and len(typed) > 1 else name
            table.add_column(first, justify="right")
    table.add_column(many, justify="right")
    support = values[kinds[0]].get("support", 0)
    for name, rates in values[kinds[0]].get("types", {}).items():
        parts = [values[kind].get("types", {}).get(name, {}) for kind in typed]
        table.add_row(name, *_precision_recall_f1(parts), str(rates.get("support", 0)))
    table.add_section()
    if typed == list(kinds):
        whole = _precision_recall_f1(values[kind] for kind in kinds)
        table.add_row("all", *whole, str(support), style="bold")
    else:
        for kind in kinds:
            shown = str(support) if kind in typed else ""
            table.add_row(kind, *_precision_recall_f1([values[kind]]), shown, style="bold")
    return table


def _ranked(values: Scored, title: str) -> Table:
    """The scores of bags: each relation by the bags' best labels, then areas and P@N."""
    told = (
        f"in percent; the likeliest relation of each of {count(values['bags'])} bags\n"
        "AUC: area under the whole precision-recall curve; first 2,000: under its first part\n"
        "P@N: share of facts among the first N predictions"
    )
    table = titled(title, caption=told)
    table.add_column("relation")
    for name in ("P", "R", "F1", "facts"):
        table.add_column(name, justify="right")
    micro = values["micro"]
    for name, rates in micro["types"].items():
        table.add_row(name, *_precision_recall_f1([rates]), str(rates["support"]))
    table.add_section()
    table.add_row("all", *_precision_recall_f1([micro]), str(micro["support"]), style="bold")
    table.add_section()
    table.add_row("AUC", "", "", points(values["auc"]), "", style="bold")
    table.add_row("first 2,000", "", "", points(values["auc_2000"]), "")
    for name, share in values["precision_at"].items():
        called = "mean P@N" if name == "mean" else f"P@{name}"
        table.add_row(called, "", "", points(share), "")
    return table


def sites(result: Result) -> Table:
    """A run's scores on test text, per site and in all, with what each site sent and received."""
    from confide.tasks import TASKS

    overall = result.scores.overall
    kinds, unit = _kinds(overall), _unit(overall)
    called = TASKS[result.task].words
    none = "no test text, so there are no scores" if TASKS[result.task].empty(overall) else ""
    title = f"{result.method}: {called.score or 'scores'} on test text, in percent"
    table = titled(title, caption="\n".join(filter(None, (none, _spent(result)))))
    table.add_column("site")
    for name in (*map(called.kind, kinds), unit, "sent", "received"):
        table.add_column(name, justify="right")
    ways = (result.bytes.up, result.bytes.down) if result.bytes else ({}, {})
    for site, values in result.scores.sites.items():
        moved = [sums.get(site) for sums in ways]
        table.add_row(site, *_each_f1(values), *("–" if n is None else size(n) for n in moved))
    table.add_section()
    total = (size(sum(sums.values())) for sums in ways)
    table.add_row("all", *_each_f1(overall), *total, style="bold")
    return table


def _spent(result: Result) -> str:
    """Text with the ε that a run under noise spent; empty without noise."""
    own = result.privacy
    if own is None:
        return ""
    said = f"under noise: ε = {own.epsilon:.3g} at δ = {own.delta:g} for one {own.unit}"
    return f"{said}, with keys from the seed: nothing is promised" if own.simulated else said


def compared(found: RunComparison) -> Table:
    """By site: the F1 of two sides in percent, their difference, its interval and a verdict."""
    first, second = shortened([found.first, found.second])
    repeats = len(found.pairs)
    caption = (
        f"difference: {second} minus {first}; {count(found.samples)} resamples of {found.unit}"
    )
    if repeats > 1:
        caption += f" over all {repeats} runs\n±: mean and standard deviation of {repeats} runs"
        caption += "" if found.same_text else ", each with its own held-out text"
    kind = "F1 of the likeliest labels" if found.matching == "best" else f"{found.matching} F1"
    table = titled(f"{kind} on test text, in percent", caption=caption)
    table.add_column("site")
    interval = f"{100 * found.level:g}% interval"
    for name in (found.unit, first, second, "difference", interval, "p"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for site, row in found.sites.items():
        table.add_row(site, *_compared(row, second))
    table.add_section()
    table.add_row("all", *_compared(found.overall, second), style="bold")
    return table


def mapping(values: Mapping[str, object], *, columns: tuple[str, str], title: str = "") -> Table:
    """A table of two columns: a name and its value."""
    table = titled(title)
    table.add_column(columns[0])
    table.add_column(columns[1], justify="right")
    for name, value in values.items():
        table.add_row(str(name), _cell(columns[1], value))
    return table


def checked(found: CheckReport) -> list[Table]:
    """Tables of how files were read, of their contents, and of entities and relations by type."""
    how = mapping(found.details, columns=("file", "read as"))
    how.columns[1].justify = "left"
    tables = [
        how,
        mapping(found.counts, columns=("total", "")),
        mapping(found.types, columns=("type", "entities")),
    ]
    if found.relations:
        tables.append(mapping(found.relations, columns=("relation", "relations")))
    return tables


def formats(known: Sequence[Format]) -> Table:
    """The file formats: the name that --format takes, what it is, and whether it is written."""
    table = titled("file formats, found from a file's content unless --format names one")
    for name in ("format", "what", "written"):
        table.add_column(name)
    for one in known:
        table.add_row(one.name, one.title, "yes" if one.write else "")
    return table


def shares(dealt: SplitReport) -> Table:
    """A table of each site's share of a corpus."""
    table = titled(f"dealt by {dealt.by}, seed {dealt.seed}")
    kinds = sorted({kind for share in dealt.sites.values() for kind in share.entities})
    links = sorted({kind for share in dealt.sites.values() for kind in share.relations})
    table.add_column("site")
    for name in ("documents", "sentences", *kinds, *links):
        table.add_column(name, justify="right")
    for site, share in dealt.sites.items():
        entities = (share.entities.get(kind, 0) for kind in kinds)
        relations = (share.relations.get(kind, 0) for kind in links)
        counts = (share.documents, share.sentences, *entities, *relations)
        table.add_row(site, *map(count, counts))
    return table


def statistics(found: Stats) -> list[Table]:
    """Counts per file and in all: sizes, entities and relations, then repeated sentences."""
    files = {**found.files, "all": found.total} if len(found.files) > 1 else found.files
    sizes, types, links = (titled(title) for title in ("sizes", "entities", "relations"))
    for table in (sizes, types, links):
        table.add_column("", overflow="fold")
        for path in shortened(files):
            table.add_column(path, justify="right", overflow="fold")
    for name in _SIZES:
        sizes.add_row(name.replace("_", " "), *(count(getattr(f, name)) for f in files.values()))
    for kind in found.total.entities:
        types.add_row(kind, *(count(f.entities.get(kind, 0)) for f in files.values()))
    for kind in found.total.relations:
        links.add_row(kind, *(count(f.relations.get(kind, 0)) for f in files.values()))
    links.add_row("pairs looked at", *(count(f.pairs) for f in files.values()))
    tables = [sizes, types, *([links] if found.total.relations or found.total.pairs else [])]
    if found.shared:
        tables.append(titled("sentences in both files"))
        for name in ("file", "and file", "sentences"):
            tables[-1].add_column(name, justify="right" if name == "sentences" else "left")
        short = dict(zip(files, shortened(files), strict=True))
        for (one, other), number in found.shared.items():
            tables[-1].add_row(short[one], short[other], count(number))
    return tables


def shortened(paths: Iterable[str]) -> list[str]:
    """Paths without the folders that all of them share.

    >>> shortened(["data/a/train.tsv", "data/b/train.tsv", "all"])
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


_SIZES = (
    "documents", "sentences", "sentences_with_entities", "tokens", "distinct_tokens",
    "nested", "overlapping", "discontinuous", "repeated",
)  # fmt: skip


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


def two_ledgers(found: LedgerDifference) -> str:
    """Text that says whether two ledgers of one run agree."""
    lines = [f"{found.site}: {found.messages} entries of its own, {found.again} of them resent"]
    lines.append(
        f"{found.verified} signatures verified"
        if found.verified
        else "no signatures: only the numbers were compared"
    )
    if found.unheard:
        lines.append(f"asks that were sent but that a site never received: {found.unheard}")
    if found.faults:
        lines += [f"first difference: {found.faults[0]}", *found.faults[1:]]
    lines += [f"only in the run's ledger: {one}" for one in found.only_here]
    lines += [f"only in the site's ledger: {one}" for one in found.only_there]
    lines.append("the two agree" if found.agree else "the two do NOT agree")
    return "\n".join(lines)


def titled(title: str, *, caption: str = "") -> Table:
    """An empty table in the style of all tables, with its title and caption on the left."""
    return Table(
        title=title or None,
        caption=caption or None,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
    )


def _cell(name: str, value: object) -> str:
    if name in ("bytes", "again") and isinstance(value, int):
        return size(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _compared(row: Difference, second: str) -> list[str]:
    clear = row.verdict != "no clear difference"
    return [
        count(row.sentences),
        _side(row.first),
        _side(row.second),
        _signed(row.difference),
        f"{_signed(row.low)} to {_signed(row.high)}",
        f"{row.p:.2g}",
        f"{second} is {row.verdict}" if clear else row.verdict,
    ]


def _side(score: SideScore) -> str:
    spread = "" if score.deviation is None else f" ± {points(score.deviation)}"
    return points(score.mean) + spread


def _signed(difference: float) -> str:
    shown = f"{100 * difference:+.1f}"
    return "0.0" if float(shown) == 0 else shown


def _precision_recall_f1(parts: Iterable[Scored]) -> list[str]:
    return [points(part.get(name)) for part in parts for name in ("precision", "recall", "f1")]


def _kinds(values: Scored) -> tuple[str, ...]:
    """The kinds of score among these."""
    from confide.tasks import task_of_scores

    return task_of_scores(values).kinds


def _unit(values: Scored) -> str:
    from confide.tasks import task_of_scores

    return task_of_scores(values).unit


def _overlooked(values: Scored) -> str:
    """Text with the number of relations that no pair covers."""
    missed = sum(values.get("missed", {}).values())
    return f"\nmissed because their pair was not looked at: {count(missed)}" if missed else ""


def _each_f1(values: Scored) -> list[str]:
    """The number of each kind, and how much was scored."""
    from confide.tasks import task_of_scores

    task, many = task_of_scores(values), values.get(_unit(values), "")
    each = [points(None if task.empty(values) else task.value(values, kind)) for kind in task.kinds]
    return [*each, str(many)]


def home_table(found: Mapping[str, AtHome], *, first: str = "site") -> Table:
    """A table of the models that each site compared, or one site after each run, in percent."""
    from confide.runs.folder import CANDIDATES

    table = titled("Score on development text / test text, in percent")
    table.add_column(first)
    for name in CANDIDATES:
        table.add_column(name, justify="right")
    table.add_column("keeps")
    for title, one in found.items():
        cells = [
            f"{_in_percent(model.dev)} / {_in_percent(model.test)}"
            if (model := one.candidates.get(name))
            else "-"
            for name in CANDIDATES
        ]
        told = " (too little to tell)" if one.undecided else ""
        table.add_row(title, *cells, one.kept + told)
    return table


def _in_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


# --- The end of `confide demo`


def demonstration(shown: DemoResult) -> Iterator[RenderableType]:
    """Scores, what the model finds in held-out sentences, what left the sites, what to do next."""
    from confide.report.folder import left, load_run, results

    runs = {name: load_run(path) for name, path in shown.runs.items()}
    yield Text("\nSYNTHETIC text from three made-up sites: scores say nothing about real notes.\n")
    yield results(runs, title="Does training together help?")
    yield found(shown.examples)
    yield left(runs["federated"], title="What left the sites in the federated run")
    if len(shown.parts) > 1:
        yield methods(shown.parts)
    yield Text.assemble(
        f"\nDone in {duration(shown.seconds)}. Open ",
        (str(shown.page), "bold"),
        " in a browser, or continue:\n\n",
        f"  confide predict {shown.runs['federated']} FILE.txt\n",
        f"  confide ledger {shown.runs['federated']}\n",
        "  confide init YOUR_FILES\n",
        "" if len(shown.parts) > 1 else "  confide demo --all     # the methods of five papers\n",
    )


def methods(parts: tuple[Part, ...]) -> Table:
    """The five parts: the method, its score on test text beside those to compare, what left."""
    table = titled("Five methods, and what left the sites under each")
    for name in ("method", "shows", "score", "alone", "together", "left the sites"):
        table.add_column(name, justify="left" if name in ("method", "shows", "score") else "right")
    for part in parts:
        alone, together = part.scores.get("alone"), part.scores[part.federated]
        bytes = size(sum(part.bytes.values()))
        table.add_row(part.method, part.title, part.score, points(alone), points(together), bytes)
    return table


def found(examples: tuple[Example, ...]) -> Table:
    """One held-out sentence per site: each marked mention, what the model says, how sure it is."""
    table = titled("What the federated model finds in held-out sentences")
    for name in ("site", "words", "marked as", "found as", "confidence"):
        table.add_column(name, justify="right" if name == "confidence" else "left")
    for example in examples:
        table.add_row(example.site, Text(example.text, style="italic"), "", "", "")
        for mark in example.marks:
            table.add_row("", Text(f"  {mark.words}"), mark.marked, *_said(mark))
        table.add_section()
    return table


def _said(mark: Mark) -> tuple[Text, str]:
    if not mark.found:
        return Text("not found", style="dim"), ""
    right = mark.found == mark.marked
    return Text(mark.found, style="green" if right else "red"), points(mark.confidence)
