"""Numbers as people read them, in points of 100, bytes, durations, counts; and pages with them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from confide.errors import printable

if TYPE_CHECKING:
    from jinja2 import Environment

NOTHING = "–"


def points(fraction: float | None) -> str:
    """A score from 0 to 1 as points of 100, with one decimal.

    >>> points(0.8136), points(None)
    ('81.4', '–')
    """
    return NOTHING if fraction is None else f"{100 * fraction:.1f}"


def size(bytes: float | None) -> str:
    """A number of bytes, in powers of ten.

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
    """A whole number with its thousands separated.

    >>> count(1234567)
    '1,234,567'
    """
    return NOTHING if number is None else f"{round(number):,}"


@cache
def templates(package: str) -> Environment:
    """The templates of a package; values in pages are escaped, and these functions are filters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=lambda name: name is None or name.endswith((".html.j2", ".svg.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (points, size, duration, count, printable):
        environment.filters[function.__name__] = function
    return environment
