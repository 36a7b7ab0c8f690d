"""The life of a job as a small picture: inline SVG, made of the table of moves, with the current place marked.

It has classes and no colours of its own: the admin's style sheet says how it looks, light or
dark. Where each state is drawn is all that is decided here; an arrow is there because its
move is.
"""

from math import atan2, copysign, cos, degrees, hypot, sin
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import words
from ..states import MOVES, State

PLACES = {  # (column, row)
    State.DELAYED: (0, 0),
    State.READY: (1, 0),
    State.RESERVED: (2, 0),
    State.CANCELLED: (0, 1),
    State.DEAD: (1, 1),
    State.FINISHED: (2, 1),
}
WIDTH, HEIGHT = 360, 172
_COLUMN, _LEFT = 126, 54  # between the middles of two columns; of the first one
_ROW, _TOP = 80, 68
_HALF_WIDTH, _HALF_HEIGHT = 46, 17
_BEND = 9  # how far an arrow bows, so that there and back are two lines
_HEAD = 7


class Point(NamedTuple):
    x: float
    y: float


def draw(now: State) -> SafeString:
    """The picture for a job that is in the state `now`, with a text alternative."""
    arrows = format_html_join("\n", "{}", ((_arrow(before, after, now),) for before, after in _pairs()))
    nodes = format_html_join("\n", "{}", ((_node(state, now),) for state in State))
    return format_html(
        '<svg class="dt-life" viewBox="0 0 {} {}" role="img" aria-labelledby="dt-life-title dt-life-text">\n'
        '<title id="dt-life-title">{}</title>\n<desc id="dt-life-text">{}</desc>\n{}\n{}\n</svg>',
        WIDTH,
        HEIGHT,
        _("The life of a job"),
        in_words(now),
        arrows,
        nodes,
    )


def in_words(now: State) -> str:
    """What the picture tells: where the job is, and what it can become."""
    here = _("This job is %(state)s.") % {"state": words.STATES[now]}
    following = [str(words.STATES[after]) for before, after in _pairs() if before is now and after is not now]
    if not following:
        return " ".join([here, _("That is where it ends.")])
    return " ".join([here, _("It can become %(states)s.") % {"states": words.listed(following)}])


def _pairs() -> list[tuple[State, State]]:
    """From where to where there are moves, in the table's order."""
    return list(dict.fromkeys((move.before, move.after) for move in MOVES))


def _node(state: State, now: State) -> SafeString:
    middle = _middle(state)
    return format_html(
        '<g class="dt-node dt-{}{}"><rect x="{}" y="{}" width="{}" height="{}" rx="8"/>'
        '<text x="{}" y="{}">{}</text></g>',
        state.word,
        " dt-here" if state is now else "",
        _short(middle.x - _HALF_WIDTH),
        _short(middle.y - _HALF_HEIGHT),
        2 * _HALF_WIDTH,
        2 * _HALF_HEIGHT,
        _short(middle.x),
        _short(middle.y + 4.5),
        words.STATES[state],
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
        *map(_short, (*start, *control, *_back_from(end, control, _HEAD - 1))),
        -_HEAD, -_HEAD / 2, -_HEAD, _HEAD / 2,
        *map(_short, (*end, angle)),
    )  # fmt: skip


def _route(before: State, after: State) -> tuple[Point, Point, Point]:
    """Start, control point and end of the curve from one state to another."""
    a, b = _middle(before), _middle(after)
    if before is after:  # a loop above the left shoulder
        top = a.y - _HALF_HEIGHT
        return Point(a.x - 38, top), Point(a.x - 27, top - 34), Point(a.x - 16, top)
    columns = abs(PLACES[before][0] - PLACES[after][0])
    if PLACES[before][1] == PLACES[after][1] and columns > 1:  # over what lies between
        top = a.y - _HALF_HEIGHT
        return Point(a.x + 6, top), Point((a.x + b.x) / 2, top - 74), Point(b.x + 6, b.y - _HALF_HEIGHT)
    length = hypot(b.x - a.x, b.y - a.y)
    beside = Point((b.y - a.y) / length * _BEND, -(b.x - a.x) / length * _BEND)
    control = Point((a.x + b.x) / 2 + 2 * beside.x, (a.y + b.y) / 2 + 2 * beside.y)
    return _edge(a, control, beside), control, _edge(b, control, beside)


def _edge(middle: Point, towards: Point, beside: Point) -> Point:
    """Where a line from beside the middle of a box towards a point leaves the box."""
    start = Point(middle.x + beside.x, middle.y + beside.y)
    dx, dy = towards.x - start.x, towards.y - start.y
    steps = [(_HALF_WIDTH - copysign(1, dx) * beside.x) / abs(dx)] if dx else []
    steps += [(_HALF_HEIGHT - copysign(1, dy) * beside.y) / abs(dy)] if dy else []
    return Point(start.x + dx * min(steps), start.y + dy * min(steps))


def _back_from(end: Point, control: Point, by: float) -> Point:
    """A little before the end, so that the line does not stick out of the arrow's head."""
    angle = atan2(end.y - control.y, end.x - control.x)
    return Point(end.x - by * cos(angle), end.y - by * sin(angle))


def _middle(state: State) -> Point:
    column, row = PLACES[state]
    return Point(_LEFT + column * _COLUMN, _TOP + row * _ROW)


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
