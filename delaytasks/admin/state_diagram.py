"""The lifecycle of a job as inline SVG, with the current state marked.

The arrows come from the table of moves; only the positions of the states are set here. Colours come from the admin's
style sheet, for light and dark themes.
"""

from math import atan2, copysign, cos, degrees, hypot, sin
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import formatting
from ..states import MOVES, State

POSITIONS = {  # (column, row)
    State.DELAYED: (0, 0),
    State.READY: (1, 0),
    State.RESERVED: (2, 0),
    State.CANCELLED: (0, 1),
    State.DEAD: (1, 1),
    State.FINISHED: (2, 1),
}
WIDTH, HEIGHT = 360, 172
_COLUMN, _LEFT = 126, 54  # distance between column centres; centre of the first column
_ROW, _TOP = 80, 68
_HALF_WIDTH, _HALF_HEIGHT = 46, 17
_BEND = 9  # curvature, so that arrows in opposite directions do not overlap
_HEAD = 7


class Point(NamedTuple):
    x: float
    y: float


def draw(now: State) -> SafeString:
    """Return the diagram for a job in the state `now`, with a text alternative."""
    arrows = format_html_join("\n", "{}", ((_arrow(before, after, now),) for before, after in _pairs()))
    nodes = format_html_join("\n", "{}", ((_node(state, now),) for state in State))
    return format_html(
        '<svg class="dt-life" viewBox="0 0 {} {}" role="img" aria-labelledby="dt-life-title dt-life-text">\n'
        '<title id="dt-life-title">{}</title>\n<desc id="dt-life-text">{}</desc>\n{}\n{}\n</svg>',
        WIDTH,
        HEIGHT,
        _("Lifecycle of the job"),
        describe(now),
        arrows,
        nodes,
    )


def describe(now: State) -> str:
    """Return the text alternative: the current state and the possible next states."""
    current = _("This job is %(state)s.") % {"state": formatting.STATES[now]}
    next_states = [str(formatting.STATES[after]) for before, after in _pairs() if before is now and after is not now]
    if not next_states:
        return " ".join([current, _("This is a final state.")])
    return " ".join([current, _("It can become %(states)s.") % {"states": formatting.join(next_states)}])


def _pairs() -> list[tuple[State, State]]:
    """Return the (before, after) states of all moves, in the table's order."""
    return list(dict.fromkeys((move.before, move.after) for move in MOVES))


def _node(state: State, now: State) -> SafeString:
    centre = _centre(state)
    return format_html(
        '<g class="dt-node dt-{}{}"><rect x="{}" y="{}" width="{}" height="{}" rx="8"/>'
        '<text x="{}" y="{}">{}</text></g>',
        state.word,
        " dt-here" if state is now else "",
        _format(centre.x - _HALF_WIDTH),
        _format(centre.y - _HALF_HEIGHT),
        2 * _HALF_WIDTH,
        2 * _HALF_HEIGHT,
        _format(centre.x),
        _format(centre.y + 4.5),
        formatting.STATES[state],
    )


def _arrow(before: State, after: State, now: State) -> SafeString:
    start, control, end = _route(before, after)
    angle = degrees(atan2(end.y - control.y, end.x - control.x))
    return format_html(
        '<g class="dt-arrow{}" data-move="{}-{}"><path d="M{} {} Q{} {} {} {}"/>'
        '<path class="dt-head" d="M0 0 L{} {} L{} {} Z" transform="translate({} {}) rotate({})"/></g>',
        " dt-open" if before is now else "",
        before.word,
        after.word,
        *map(_format, (*start, *control, *_back_from(end, control, _HEAD - 1))),
        -_HEAD, -_HEAD / 2, -_HEAD, _HEAD / 2,
        *map(_format, (*end, angle)),
    )  # fmt: skip


def _route(before: State, after: State) -> tuple[Point, Point, Point]:
    """Return the start, the control point and the end of the curve from one state to another."""
    a, b = _centre(before), _centre(after)
    if before is after:  # a loop above the left shoulder
        top = a.y - _HALF_HEIGHT
        return Point(a.x - 38, top), Point(a.x - 27, top - 34), Point(a.x - 16, top)
    columns = abs(POSITIONS[before][0] - POSITIONS[after][0])
    if POSITIONS[before][1] == POSITIONS[after][1] and columns > 1:  # a curve above the states in between
        top = a.y - _HALF_HEIGHT
        return Point(a.x + 6, top), Point((a.x + b.x) / 2, top - 74), Point(b.x + 6, b.y - _HALF_HEIGHT)
    length = hypot(b.x - a.x, b.y - a.y)
    beside = Point((b.y - a.y) / length * _BEND, -(b.x - a.x) / length * _BEND)
    control = Point((a.x + b.x) / 2 + 2 * beside.x, (a.y + b.y) / 2 + 2 * beside.y)
    return _edge(a, control, beside), control, _edge(b, control, beside)


def _edge(centre: Point, towards: Point, beside: Point) -> Point:
    """Return the point where the line from a box's centre, shifted by `beside`, to `towards` crosses the box's edge."""
    start = Point(centre.x + beside.x, centre.y + beside.y)
    dx, dy = towards.x - start.x, towards.y - start.y
    steps = [(_HALF_WIDTH - copysign(1, dx) * beside.x) / abs(dx)] if dx else []
    steps += [(_HALF_HEIGHT - copysign(1, dy) * beside.y) / abs(dy)] if dy else []
    return Point(start.x + dx * min(steps), start.y + dy * min(steps))


def _back_from(end: Point, control: Point, by: float) -> Point:
    """Return the point at distance `by` before the end of a curve, so that the arrowhead hides the end of the line."""
    angle = atan2(end.y - control.y, end.x - control.x)
    return Point(end.x - by * cos(angle), end.y - by * sin(angle))


def _centre(state: State) -> Point:
    column, row = POSITIONS[state]
    return Point(_LEFT + column * _COLUMN, _TOP + row * _ROW)


def _format(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
