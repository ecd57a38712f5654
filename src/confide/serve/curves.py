"""A small line plot as SVG, without style attributes, which our pages' policy refuses."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 440, 220, 44, 28, 10


def plot(lines: Sequence[tuple[str, Points]], *, title: str, top: float | None = None) -> Markup:
    """Lines over rounds, the first solid, the second dashed; `top` fixes the upper end.

    Empty if no line has a point.
    """
    points = [point for _, line in lines for point in line]
    if not points:
        return Markup("")
    last = max(2.0, max(x for x, _ in points))
    high = top or max(max(y for _, y in points) * 1.05, 1e-9)

    def at(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - 12) * (x - 1) / (last - 1)
        down = ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - min(max(y / high, 0), 1))
        return f"{across:.1f},{down:.1f}"

    parts = [_axes(at, last=last, high=high)]
    for number, (_, line) in enumerate(lines):
        kind = Markup(' class="b"') if number else Markup("")
        where = " ".join(at(x, y) for x, y in line)
        parts.append(Markup('<polyline{} points="{}"/>').format(kind, where))
        if line:
            across, down = at(*line[-1]).split(",")
            parts.append(Markup('<circle{} cx="{}" cy="{}" r="3"/>').format(kind, across, down))
    ends = "; ".join(f"{name or 'now'} {line[-1][1]:.3g}" for name, line in lines if line)
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, f"{title} by round: {ends}", Markup("").join(parts))


def _axes(at: object, *, last: float, high: float) -> Markup:
    assert callable(at)
    parts = []
    for share in (0.0, 0.5, 1.0):
        left, y = at(1, share * high).split(",")
        right = at(last, 0).split(",")[0]
        kind = "axis" if share == 0 else "grid"
        parts.append(
            Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
                kind, left, right, y, y
            )
        )
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
                float(left) - 6, float(y) + 4, escape(f"{share * high:.3g}")
            )
        )
    for x in sorted({1, round(last)}):
        across, down = at(x, 0).split(",")
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
                across, float(down) + 18, x
            )
        )
    return Markup("").join(parts)
