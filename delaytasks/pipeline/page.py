"""A report as one HTML page that can be mailed: no script, no fetch, light or dark as its reader has it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from . import charts
from .hours import HOUR_MS, MINUTE_MS
from .style import CSS
from .telling import Facts, Herd, Numbers, Topic

SOON = 120  # minutes that are shown one by one
BIN = 10  # minutes of a bar in what comes later
LABELS = 10  # below a chart, at most; so many minutes apart, at round times:
APART = (5, 15, 30, 60, 120, 180, 240, 360, 720, 1_440, 2_880, 7_200)
PARTS = (("finished", "finished"), ("retried", "retried"), ("cancelled", "cancelled"), ("snoozed", "snoozed"),
         ("died", "died"))  # fmt: skip
LATE = (("late_p50_ms", "p50"), ("late_p95_ms", "p95"), ("late_p99_ms", "p99"))


def html(facts: Facts) -> str:
    """The page. Texts that came from jobs are escaped."""
    end = _moment(facts.end_ms)
    read = f"Read at {_moment(facts.taken_ms):%Y-%m-%d %H:%M:%S}. All times are UTC."
    parts = [
        f"<h1>Timeouts, {end:%A %d %B %Y}</h1>",
        f'<p class="quiet">What happened up to {end:%H:%M}, and what is going to fall due. {read}</p>',
        _tiles(facts), *_happened(facts), *_lateness(facts), *_due(facts), *_topics(facts),
    ]  # fmt: skip
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Timeouts, {end:%Y-%m-%d %H:%M} UTC</title>\n<style>{CSS}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _tiles(facts: Facts) -> str:
    def total(hours: Sequence[Numbers], name: str) -> int:
        return sum(each.get(name, 0) for each in hours[-24:])

    tiles = [
        (_number(total(facts.hours, name)), said, _change(total(facts.hours, name), total(facts.before, name)), bad)
        for name, said, bad in (("finished", "finished in 24 h", ""), ("retried", "attempts retried", ""),
                                ("died", "died", "bad" if total(facts.hours, "died") else ""))
    ]  # fmt: skip
    tiles.append((_number(sum(facts.minutes)), f"fall due in {len(facts.minutes) // 60} h", "", ""))
    tiles.append((_number(facts.overdue), "overdue now", "", ""))
    coming = "herd is coming" if len(facts.herds) == 1 else "herds are coming"
    tiles.append((_number(len(facts.herds)), coming, "", "bad" if facts.herds else ""))
    items = "".join(
        f'<li><b class="{css}">{number}</b>{said}<br>'
        f'<span class="quiet">{f"{change} on a week before" if change else "&nbsp;"}</span></li>'
        for number, said, change, css in tiles
    )
    return f'<ul class="tiles">{items}</ul>'


def _happened(facts: Facts) -> list[str]:
    stacks = [(css, [float(each.get(name, 0)) for each in facts.hours]) for name, css in PARTS]
    says = [f"{_label(facts, n)}: " + ", ".join(f"{_number(each.get(name, 0))} {name}" for name, _ in PARTS)
            for n, each in enumerate(facts.hours)]  # fmt: skip
    before = [float(sum(each.get(name, 0) for name, _ in PARTS)) if each else None for each in facts.before]
    totals = [sum(values) for values in zip(*(v for _, v in stacks), strict=True)]
    top = charts.nice(max([*totals, *(v for v in before if v is not None)], default=0))
    chart = charts.bars(
        stacks, _days(facts), says=says, name="What happened in each hour of the last seven days", top=top
    )
    chart = charts.over(chart, charts.outline(before, top, "before"))
    return ["<h2>What happened, by the hour</h2>", _key([name for name, _ in PARTS], before=True), chart]


def _lateness(facts: Facts) -> list[str]:
    series = [(css, [each.get(name) for each in facts.hours]) for name, css in LATE]
    chart = charts.lines(series, _days(facts), name="How late first attempts began, by the hour", unit=span)
    return ["<h2>How late jobs began</h2>", _key([css for _, css in LATE]), chart]


def _due(facts: Facts) -> list[str]:
    soon, later = facts.minutes[:SOON], facts.minutes
    herding = {(each.minute_ms - facts.start_ms) // MINUTE_MS for each in facts.herds}
    found = ["<h2>What falls due in the next two hours, minute by minute</h2>",
             _bars_of(facts.start_ms, soon, 1, herding, "What falls due, minute by minute")]  # fmt: skip
    if len(later) > SOON:
        ahead = facts.start_ms // MINUTE_MS % BIN  # bars begin at whole tens of minutes, the first with what is left
        padded = [0] * ahead + list(later)
        bins = [sum(padded[at : at + BIN]) for at in range(0, len(padded), BIN)]
        herding = {(place + ahead) // BIN for place in herding}
        chart = _bars_of(facts.start_ms - ahead * MINUTE_MS, bins, BIN, herding, "What falls due, by ten minutes")
        found += [f"<h2>What falls due in {len(later) // 60} hours, by {BIN} minutes</h2>", chart]
    if facts.herds:
        head = '<tr><th>minute</th><th>jobs</th><th class="words">most of them</th></tr>'
        rows = "".join(_herd(each) for each in facts.herds)
        found += ["<h2>Herds</h2>", f'<div class="scroll"><table>{head}{rows}</table></div>']
    return found


def _bars_of(start_ms: int, numbers: Sequence[int], width: int, herding: set[int], name: str) -> str:
    """Bars of so many minutes from start_ms on; those that are or have herds in their colour."""
    calm = [0.0 if n in herding else float(number) for n, number in enumerate(numbers)]
    herd = [float(number) if n in herding else 0.0 for n, number in enumerate(numbers)]
    at = [_moment(start_ms + n * width * MINUTE_MS) for n in range(len(numbers))]
    says = [f"{when:%a %H:%M}: {_number(number)}" for when, number in zip(at, numbers, strict=True)]
    apart = next(each for each in APART if len(numbers) * width <= each * LABELS or each == APART[-1])
    labels = [_time(when) if (when.timestamp() // 60) % apart == 0 else "" for when in at]
    return charts.bars([("due", calm), ("herd", herd)], labels, says=says, name=name)


def _time(when: datetime) -> str:
    """Of the day; at its beginning which one it is."""
    return f"{when:%H:%M}" if when.hour or when.minute else f"{when:%a %d}"


def _herd(each: Herd) -> str:
    whose = ", ".join(f"{escape(topic)} ({_number(number)})" for topic, number in each.topics)
    when = f"{_moment(each.minute_ms):%a %d %b %H:%M}"
    return f'<tr><td>{when}</td><td>{_number(each.due)}</td><td class="words">{whose}</td></tr>'


def _topics(facts: Facts) -> list[str]:
    head = "".join(f"<th>{each}</th>" for each in (
        "topic", "24 hours", "happened", "on a week before", "finished", "retried", "died", "p50", "p95", "p99",
        "falls due", "overdue"))  # fmt: skip
    rows = "".join(_topic(each) for each in facts.topics)
    more = f'<p class="quiet">{facts.more_topics} more topics.</p>' if facts.more_topics else ""
    return ["<h2>Topics in the last 24 hours</h2>",
            f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>{more}']  # fmt: skip


def _topic(each: Topic) -> str:
    day = each.day
    cells = [charts.spark(each.hours), _number(day.get("happened", 0)),
             _change(day.get("happened", 0), each.before.get("happened", 0)) or "–",
             *(_number(day.get(name, 0)) for name in ("finished", "retried"))]  # fmt: skip
    died = day.get("died", 0)
    cells.append(f'<span class="bad">{_number(died)}</span>' if died else "0")
    cells += [span(day[name]) if name in day else "–" for name, _ in LATE]
    cells += [_number(each.due), _number(each.overdue)]
    return f"<tr><td>{escape(each.name)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


# Words


def _key(names: Sequence[str], *, before: bool = False) -> str:
    items = "".join(f'<span><i style="background:var(--{name})"></i>{name}</span>' for name in names)
    dashed = "<span>- - - all of it, a week before</span>" if before else ""
    return f'<p class="key quiet">{items}{dashed}</p>'


def _days(facts: Facts) -> list[str]:
    """A label where a day begins."""
    at = [_moment(facts.end_ms - (len(facts.hours) - n) * HOUR_MS) for n in range(len(facts.hours))]
    return [f"{when:%a %d}" if when.hour == 0 else "" for when in at]


def _label(facts: Facts, n: int) -> str:
    return f"{_moment(facts.end_ms - (len(facts.hours) - n) * HOUR_MS):%a %d %b %H:%M}"


def _change(now: float, before: float) -> str:
    """Against the week before; empty where there is nothing to compare with."""
    return f"{round(100 * (now - before) / before):+,} %" if before else ""


def span(ms: float) -> str:
    """A length of time in its largest unit."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= unit:
            return f"{ms / unit:.3g} {name}"
    return f"{ms:.0f} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
