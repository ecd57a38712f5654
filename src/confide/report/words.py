"""Numbers as people read them: F1 in points of 100, bytes, durations, counts.

And what the things of a task are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Called:
    """What things are called on a page of one task.

    `found` is what a model finds, `type` one kind of it, `unit` what it looks at one by one,
    `nothing` what the empty name stands for in a confusion; `score` is what its scores are called,
    where they are of one sort, `kinds` how each kind is called beside it, and `shown` the two that
    stand where there is no room for all.
    """

    found: str
    type: str
    each_type: str
    unit: str
    nothing: str
    score: str = "F1"
    kinds: Mapping[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] = ()

    def kind(self, name: str) -> str:
        """A kind of score as a column is titled."""
        return self.kinds.get(name, name)

    def full(self, name: str) -> str:
        """A kind of score as an axis is titled."""
        return f"{self.score}, {name}" if self.score else self.kind(name)


CALLED: Mapping[str, Called] = MappingProxyType(
    {
        "ner": Called("entities", "type", "Each type of entity", "sentences", "nothing"),
        "re": Called("relations", "relation", "Each relation", "examples", "not looked at"),
        "bags": Called(
            "relations",
            "relation",
            "Each relation",
            "sentences",
            "nothing",
            score="",
            kinds={"auc": "AUC", "auc_2000": "AUC, first 2,000", "precision_at": "mean P@N"},
            shown=("auc", "precision_at"),
        ),
        "text": Called(
            "pieces",
            "text",
            "Each text",
            "sentences",
            "nothing",
            score="",
            kinds={"likelihood": "likelihood", "right": "right", "hidden": "hidden right"},
            shown=("likelihood", "hidden"),
        ),
    }
)
"""By task."""


def points(fraction: float | None) -> str:
    """A score from 0 to 1 as points of 100, with one decimal.

    >>> points(0.8136), points(None)
    ('81.4', '–')
    """
    return NOTHING if fraction is None else f"{100 * fraction:.1f}"


def size(bytes: float | None) -> str:
    """A number of bytes in powers of ten.

    >>> size(512), size(20_480), size(3_400_000)
    ('512 B', '20.5 kB', '3.4 MB')
    """
    if bytes is None:
        return NOTHING
    value = float(bytes)
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def duration(seconds: float | None) -> str:
    """A time span.

    >>> duration(3.21), duration(250), duration(7380)
    ('3.2 s', '4 min 10 s', '2 h 3 min')
    """
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count(number: float | None) -> str:
    """A whole number with thin separators of thousands.

    >>> count(1234567)
    '1,234,567'
    """
    return NOTHING if number is None else f"{round(number):,}"
