"""The table of a sweep as Markdown, LaTeX and CSV, and its drawing."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from confide.jobs.comparison import Difference
from confide.report.plots import MOST_ROWS, Look, dots_figure, svg_file
from confide.tasks import TASKS, TaskName
from confide.words import NOTHING, duration, points, size


@dataclass(frozen=True, slots=True)
class Spread:
    """A score over seeds: mean, sample deviation (None of one seed), lowest and highest."""

    mean: float
    deviation: float | None
    lowest: float
    highest: float

    def __str__(self) -> str:
        around = "" if self.deviation is None else f" ± {points(self.deviation)}"
        return f"{points(self.mean)}{around}"


@dataclass(frozen=True, slots=True)
class OnTest:
    """A score on test text, the interval of its F1, and how it differs from another cell's.

    The interval and `p` come from resampled sentences (`confide.jobs.comparison.compare`).
    """

    spread: Spread
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None

    def against(self, found: Difference) -> OnTest:
        """Add the difference to a copy."""
        return replace(
            self,
            difference=found.difference,
            difference_low=found.low,
            difference_high=found.high,
            p=found.p,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its values, how many of its runs are finished, and what they say.

    `bytes_up` is what left all sites, `seconds` what the rounds took; each a mean over runs.
    """

    cell: int
    values: dict[str, str]
    finished: int
    chosen: bool
    dev: Spread | None
    test: OnTest | None
    bytes_up: float | None
    seconds: float | None


@dataclass(frozen=True)
class SweepReport:
    """The cells of a sweep. Scores are fractions; `kind` says of which kind.

    Test scores are those of the chosen cell, or with `every` of all finished ones.
    """

    name: str
    keys: tuple[str, ...]
    seeds: tuple[int, ...]
    task: TaskName
    kind: str
    against: int
    every: bool
    rows: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    @property
    def header(self) -> list[str]:
        """The names of the columns for people."""
        last = [key.rpartition(".")[2] for key in self.keys]
        short = [
            one if last.count(one) == 1 else key for key, one in zip(self.keys, last, strict=True)
        ]
        compared = [f"− cell {self.against}", "p"] if len(self.rows) > 1 else []
        return ["cell", *short, "seeds", "development", "test", *compared, "up", "time"]

    @property
    def lines(self) -> list[list[str]]:
        """The cells of the table for people; scores are points of 100."""
        return [self._line(row) for row in self.rows]

    def _line(self, row: Cell) -> list[str]:
        test = row.test or OnTest(Spread(0.0, None, 0.0, 0.0))
        score = "" if row.test is None else str(test.spread)
        if test.low is not None:
            score += f" [{points(test.low)}, {points(test.high)}]"
        difference = ""
        if test.difference is not None:
            ends = f"[{_signed(test.difference_low)}, {_signed(test.difference_high)}]"
            difference = f"{_signed(test.difference)} {ends}"
        compared = [difference, "" if test.p is None else f"{test.p:.3f}"]
        return [
            f"{row.cell}{' *' if row.chosen else ''}",
            *row.values.values(),
            f"{row.finished}/{len(self.seeds)}",
            NOTHING if row.dev is None else str(row.dev),
            score,
            *(compared if len(self.rows) > 1 else []),
            size(row.bytes_up),
            duration(row.seconds),
        ]

    @property
    def caption(self) -> str:
        """Lines that say what the table shows."""
        return "\n".join(self._caption())

    def _caption(self) -> Iterator[str]:
        words = TASKS[self.task].words
        around = ", mean ± deviation over seeds" if len(self.seeds) > 1 else ""
        yield f"{self.name}: {words.full(self.kind)}{around}"
        chosen = next((row for row in self.rows if row.chosen), None)
        left = sum(row.finished < len(self.seeds) for row in self.rows)
        if chosen is None:
            none = "no cell is finished" if left == len(self.rows) else "no development score"
            yield f"nothing is chosen: {none}"
        else:
            so_far = f" of those finished so far ({left} are not)" if left else ""
            yield f"* chosen{so_far} by development score alone"
        if self.every:
            yield "test scores of all cells: whoever picks a cell by them has chosen on test text"
        elif chosen is not None:
            yield "test scores: of the chosen cell only (--all shows all)"
        if any(row.test and row.test.low is not None for row in self.rows):
            yield "[...]: 95% interval over resampled test text, all seeds together"
        if sum(row.test is not None and row.test.p is not None for row in self.rows) > 1:
            yield "p: of each pair on its own; among 20 equal cells one looks different by chance"
        yield from self.notes

    def markdown(self) -> str:
        """The table in Markdown; what it shows is said below."""
        rows = [self.header, ["---"] * len(self.header), *self.lines]
        lines = [f"| {' | '.join(map(_in_markdown, row))} |" for row in rows]
        return (
            "\n".join([*lines, "", *(f"{_in_markdown(one)}  " for one in self._caption())]) + "\n"
        )

    def latex(self) -> str:
        """The table as a LaTeX `tabular`; what it shows is said in comments."""
        said = [f"% {line}" for line in self._caption()]
        body = [" & ".join(map(_in_latex, row)) + r" \\" for row in (self.header, *self.lines)]
        columns = "r" + "l" * (len(self.header) - 1)
        return "\n".join(
            [
                *said, rf"\begin{{tabular}}{{{columns}}}", r"\hline", body[0], r"\hline",
                *body[1:], r"\hline", r"\end{tabular}",
            ]
        ) + "\n"  # fmt: skip

    def csv(self) -> str:
        """One line a cell, scores as fractions; what is not known or not shown is empty."""
        buffer = io.StringIO()
        out = csv.writer(buffer, lineterminator="\n")
        out.writerow(["cell", *self.keys, *_NUMBERS])
        for row in self.rows:
            dev, test = row.dev, row.test
            spread = test.spread if test else None
            out.writerow(
                [
                    row.cell, *row.values.values(), row.finished, int(row.chosen),
                    *((dev.mean, dev.deviation) if dev else (None, None)),
                    *((spread.mean, spread.deviation) if spread else (None, None)),
                    *((test.low, test.high) if test else (None, None)),
                    *((test.difference, test.difference_low, test.difference_high, test.p)
                      if test else (None,) * 4),
                    row.bytes_up, row.seconds,
                ]
            )  # fmt: skip
        return buffer.getvalue()

    def svg(self) -> str:
        """Development scores by cell, the best on top; bars reach over all seeds."""
        scored = [(row.dev, row) for row in self.rows if row.dev is not None]
        scored.sort(key=lambda one: -one[0].mean)
        named = {_label(row): dev for dev, row in scored[:MOST_ROWS]}
        bars = {name: (dev.lowest, dev.highest) for name, dev in named.items()}
        figure = dots_figure(
            list(named),
            [(Look.of(0), {name: dev.mean for name, dev in named.items()})],
            x_label=f"{TASKS[self.task].words.full(self.kind)}, development",
            ranges=[bars] if len(self.seeds) > 1 else [],
        )
        return svg_file(figure)


_NUMBERS = (
    "finished", "chosen", "dev_mean", "dev_deviation", "test_mean", "test_deviation", "test_low",
    "test_high", "difference", "difference_low", "difference_high", "p", "bytes_up", "seconds",
)  # fmt: skip


def _label(row: Cell) -> str:
    return f"{row.cell}: " + ", ".join(row.values.values()) if row.values else str(row.cell)


def _signed(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{100 * fraction:+.1f}".replace("-", "−")


def _in_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


_LATEX = {
    **{one: f"\\{one}" for one in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": r"$-$", "–": "--", "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(one, one) for one in text)
