"""Charts as inline SVG, without scripts or external files. Colours come from the page, for light and dark."""

from collections.abc import Callable, Sequence
from html import escape
from math import log10

WIDTH, HEIGHT = 960, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 24
LETTER_WIDTH = 7  # maximum width of a letter in a label
GRID_LINES = 4
Points = Sequence[float | None]


def bars(
    stacks: Sequence[tuple[str, Sequence[float]]],
    labels: Sequence[str],
    *,
    titles: Sequence[str],
    name: str,
    top: float = 0,
) -> str:
    """Return a stacked bar chart.

    stacks   (CSS class, its value in each bar), from bottom to top
    labels   texts below the bars; "" for none
    titles   tooltip of each bar
    name     description of the chart for screen readers
    top      upper end of the scale, if a line above the bars is added later; 0: computed from the bars
    """
    totals = [sum(values) for values in zip(*(values for _, values in stacks), strict=True)]
    top = top or nice(max(totals, default=0))
    width = (WIDTH - LEFT - RIGHT) / max(1, len(totals))
    elements = []
    for n, title in enumerate(titles):
        x, floor = LEFT + n * width, 0.0
        parts = []
        for css, values in stacks:
            height = _height(values[n], top)
            if height:
                parts.append(f'<rect class="{css}" x="{x:.1f}" y="{_y(floor + values[n], top):.1f}" '
                             f'width="{max(width - 0.4, 0.4):.1f}" height="{height:.1f}"/>')  # fmt: skip
            floor += values[n]
        if parts:
            elements.append(f"<g><title>{escape(title)}</title>{''.join(parts)}</g>")
    return _svg(name, grid(top, count) + axis(labels) + "".join(elements))


def lines(
    series: Sequence[tuple[str, Points]], labels: Sequence[str], *, name: str, unit: Callable[[float], str]
) -> str:
    """Return a line chart on a logarithmic scale.

    series   (CSS class, its values in milliseconds; None: a gap in the line)
    labels   texts below the chart; "" for none
    name     description of the chart for screen readers
    unit     formats a value of the scale
    """
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
    """Return a line to draw with overlay() on a bar chart with the same `top`."""
    return f'<path class="{css}" d="{path(values, top)}"/>'


def overlay(svg: str, elements: str) -> str:
    """Return the SVG of a chart with these elements added on top."""
    return svg.replace("</svg>", f"{elements}</svg>")


def spark(values: Sequence[float], floor: float = 0) -> str:
    """Return a sparkline. floor: lower end of its scale."""
    span, step = max([*values, 1]) - floor or 1, 96 / max(1, len(values) - 1)
    points = " ".join(f"{n * step:.1f},{22 - 20 * (value - floor) / span:.1f}" for n, value in enumerate(values))
    return f'<svg class="spark" viewBox="0 0 96 24" aria-hidden="true"><polyline points="{points}"/></svg>'


def path(values: Points, top: float) -> str:
    """Return the `d` attribute of a line over evenly spaced values. None is a gap; a value between gaps is a dot."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    elements, command = [], "M"
    for n, value in enumerate(values):
        if value is None:
            command = "M"
            continue
        x = LEFT + (n + 0.5) * step
        elements.append(f"{command}{x:.1f} {_y(value, top):.1f}" + ("h0.1" if command == "M" else ""))
        command = "L"
    return "".join(elements)


def grid(top: float, unit: Callable[[float], str]) -> str:
    return "".join(_line(top * n / GRID_LINES, top, unit(top * n / GRID_LINES)) for n in range(GRID_LINES + 1))


def axis(labels: Sequence[str]) -> str:
    """Return the labels below the chart, except empty ones and those that would be cut off at the right."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    return "".join(
        f'<text class="x" x="{LEFT + n * step:.1f}" y="{HEIGHT - 6}">{escape(label)}</text>'
        for n, label in enumerate(labels) if label and LEFT + n * step + LETTER_WIDTH * len(label) < WIDTH
    )  # fmt: skip


def nice(maximum: float) -> float:
    """Return the upper end of a scale: a number of at least `maximum` that gives round numbers at the grid lines."""
    unit = 10 ** max(0, len(str(int(maximum))) - 1)
    return (
        next((unit * n for n in (1, 2, 4, 6, 8) if unit * n >= maximum), unit * 10)
        if maximum > GRID_LINES
        else GRID_LINES
    )


def count(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 10_000 else f"{value:g}"


def percent(share: float) -> str:
    """Return a share in percent, rounded down to one decimal, so that only a share of 1 is shown as 100 %."""
    return f"{int(share * 1000) / 10:g} %"


def _line(value: float, top: float, label: str) -> str:
    y = _y(value, top)
    return (f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="y" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(label)}</text>')  # fmt: skip


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - _height(value, top)


def _height(value: float, top: float) -> float:
    return (HEIGHT - TOP - BOTTOM) * value / top


def _svg(name: str, content: str) -> str:
    """Return the chart as HTML. It scrolls on a narrow screen instead of shrinking, so that its text stays legible."""
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}"'
    return f'<div class="scroll"><svg class="chart" {view}>{content}</svg></div>'
