"""Bar charts as SVG with real text, for light and dark pages. Uses only the standard library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .results import Figure

OURS = "delaytasks"
WIDTH, LEFT, RIGHT = 840, 260, 130
BAR, GAP, TOP, BOTTOM = 20, 8, 56, 16

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.note { fill: #57606a; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
.spread { stroke: #1f2328; stroke-width: 1.5; }
.axis { stroke: #8c959f; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9da7b1; }
  .bar { fill: #6e7681; }
  .ours { fill: #2f81f7; }
  .spread { stroke: #e6edf3; }
  .axis { stroke: #6e7681; }
}
"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    low: float
    high: float
    ours: bool = False


@dataclass(frozen=True)
class Chart:
    """Bars of one unit, from top to bottom."""

    file: str
    title: str
    note: str
    bars: Sequence[Bar]


def of_scenario(name: str, figures: Sequence[Figure]) -> list[Chart]:
    """Return a chart for each unit of a scenario, the best bar on top."""
    result = []
    units = list(dict.fromkeys((figure.unit, figure.better) for figure in figures))
    for number, (unit, better) in enumerate(units):
        shown = [figure for figure in figures if (figure.unit, figure.better) == (unit, better)]
        bars = sorted((_bar(figure) for figure in shown), key=lambda bar: bar.value, reverse=better == "more")
        suffix = f"-{number + 1}" if number else ""
        note = f"{unit}, {better} is better; the thin line is the range of the repeats"
        result.append(Chart(f"bench-{name}{suffix}.svg", f"{name}, {unit}", note, bars))
    return result


def _bar(figure: Figure) -> Bar:
    label = f"{figure.contestant}, {figure.form}"
    return Bar(label, figure.median, min(figure.values), max(figure.values), figure.contestant.startswith(OURS))


def svg(chart: Chart) -> str:
    """Return the SVG file, with a title and a description for screen readers."""
    height = TOP + len(chart.bars) * (BAR + GAP) + BOTTOM
    maximum = max((bar.high for bar in chart.bars), default=0.0) or 1.0
    description = "; ".join(f"{bar.label}: {number(bar.value)}" for bar in chart.bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        '  role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(chart.title)}</title>',
        f'<desc id="desc">{escape(description)}</desc>',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="12" y="24">{escape(chart.title)}</text>',
        f'<text class="note" x="12" y="43">{escape(chart.note)}</text>',
    ]
    for position, bar in enumerate(chart.bars):
        lines += _draw_bar(bar, TOP + position * (BAR + GAP), (WIDTH - LEFT - RIGHT) / maximum)
    lines.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP - 4}" y2="{height - BOTTOM}"/>')
    return "\n".join([*lines, "</svg>", ""])


def _draw_bar(bar: Bar, y: float, scale: float) -> list[str]:
    middle, text_y = y + BAR / 2, y + BAR / 2 + 4.5
    width, low, high = (max(0.0, number) * scale for number in (bar.value, bar.low, bar.high))
    kind = "ours" if bar.ours else "bar"
    return [
        f'<text x="{LEFT - 10}" y="{text_y:g}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{y:g}" width="{max(width, 1):.1f}" height="{BAR}" rx="2"/>',
        f'<line class="spread" x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{middle:g}" y2="{middle:g}"/>',
        f'<text x="{LEFT + max(high, width) + 8:.1f}" y="{text_y:g}">{number(bar.value)}</text>',
    ]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
