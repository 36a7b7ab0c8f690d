"""Charts as inline SVG: no script, no fetch; colours are the page's, so they follow light and dark."""

from collections.abc import Callable, Sequence
from html import escape
from math import log10

WIDTH, HEIGHT = 960, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 24
LETTER = 7  # wide, at most
STEPS = 4  # lines of the grid
Points = Sequence[float | None]


def bars(
    stacks: Sequence[tuple[str, Sequence[float]]],
    labels: Sequence[str],
    *,
    says: Sequence[str],
    name: str,
    top: float = 0,
) -> str:
    """Bars, one per label, of parts one upon the other. stacks: (css class, values); says: each bar in words.

    top   of the grid, where something higher is laid over them
    """
    totals = [sum(values) for values in zip(*(values for _, values in stacks), strict=True)]
    top = top or nice(max(totals, default=0))
    width = (WIDTH - LEFT - RIGHT) / max(1, len(totals))
    found = []
    for n, whole in enumerate(says):
        x, floor = LEFT + n * width, 0.0
        parts = []
        for css, values in stacks:
            height = _height(values[n], top)
            if height:
                parts.append(f'<rect class="{css}" x="{x:.1f}" y="{_y(floor + values[n], top):.1f}" '
                             f'width="{max(width - 0.4, 0.4):.1f}" height="{height:.1f}"/>')  # fmt: skip
            floor += values[n]
        if parts:
            found.append(f"<g><title>{escape(whole)}</title>{''.join(parts)}</g>")
    return _svg(name, grid(top, count) + axis(labels) + "".join(found))


def lines(
    series: Sequence[tuple[str, Points]], labels: Sequence[str], *, name: str, unit: Callable[[float], str]
) -> str:
    """Lines over the labels on a logarithmic scale, as milliseconds and hours are told together. None: a gap."""
    top = max((log10(1 + value) for _, values in series for value in values if value is not None), default=0.0) or 1.0
    paths = "".join(
        f'<path class="{css}" d="{path([None if v is None else log10(1 + v) for v in values], top)}"/>'
        for css, values in series
    )
    ticks = "".join(
        _line(log10(1 + value), top, unit(value)) for value in (1, 10, 100, 1_000, 10_000, 60_000, 3_600_000)
        if log10(1 + value) <= top
    )  # fmt: skip
    return _svg(name, ticks + axis(labels) + paths)


def outline(values: Points, top: float, css: str) -> str:
    """A line that can be laid over bars of the same top."""
    return f'<path class="{css}" d="{path(values, top)}"/>'


def over(svg: str, more: str) -> str:
    return svg.replace("</svg>", f"{more}</svg>")


def spark(values: Sequence[float]) -> str:
    """A line of a word's size."""
    top, step = max([*values, 1]), 96 / max(1, len(values) - 1)
    points = " ".join(f"{n * step:.1f},{22 - 20 * value / top:.1f}" for n, value in enumerate(values))
    return f'<svg class="spark" viewBox="0 0 96 24" aria-hidden="true"><polyline points="{points}"/></svg>'


def path(values: Points, top: float) -> str:
    """The `d` of a line over values in even steps; a value alone is a dot."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    found, pen = [], "M"
    for n, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = LEFT + (n + 0.5) * step
        found.append(f"{pen}{x:.1f} {_y(value, top):.1f}" + ("h0.1" if pen == "M" else ""))
        pen = "L"
    return "".join(found)


def grid(top: float, unit: Callable[[float], str]) -> str:
    return "".join(_line(top * n / STEPS, top, unit(top * n / STEPS)) for n in range(STEPS + 1))


def axis(labels: Sequence[str]) -> str:
    """Labels below; an empty one is not written, nor one that would be cut off at the right."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    return "".join(
        f'<text class="x" x="{LEFT + n * step:.1f}" y="{HEIGHT - 6}">{escape(label)}</text>'
        for n, label in enumerate(labels) if label and LEFT + n * step + LETTER * len(label) < WIDTH
    )  # fmt: skip


def nice(most: float) -> float:
    """A round number that is not below `most`, and is parted well by STEPS."""
    unit = 10 ** max(0, len(str(int(most))) - 1)
    return next((unit * n for n in (1, 2, 4, 6, 8) if unit * n >= most), unit * 10) if most > STEPS else STEPS


def count(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 10_000 else f"{value:g}"


def _line(value: float, top: float, label: str) -> str:
    y = _y(value, top)
    return (f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="y" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(label)}</text>')  # fmt: skip


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - _height(value, top)


def _height(value: float, top: float) -> float:
    return (HEIGHT - TOP - BOTTOM) * value / top


def _svg(name: str, inside: str) -> str:
    """A chart that keeps its letters legible on a phone: it scrolls there."""
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}"'
    return f'<div class="scroll"><svg class="chart" {view}>{inside}</svg></div>'
