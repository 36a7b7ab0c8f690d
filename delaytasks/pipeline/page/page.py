"""Render a report as one HTML page that can be mailed: no scripts or external files; light or dark."""

from collections.abc import Sequence
from datetime import datetime
from html import escape

from ...clock import from_ms
from ..applications.stale_hours import HOUR_MS, MINUTE_MS
from . import charts
from .facts import Facts, Herd, Need, Statistics, Topic
from .style import CSS

SOON_MINUTES = 120  # length of the chart with a bar for each minute
BIN_MINUTES = 10  # minutes per bar in the chart of all jobs that fall due
MAX_NEEDS = 12  # hours in the table of slots
BODY_BEGIN, BODY_END = "<body>\n", "\n</body></html>\n"
MAX_LABELS = 10  # below a chart of due jobs
# Possible distances between these labels. The smallest that gives at most MAX_LABELS labels is used.
LABEL_MINUTES = (5, 15, 30, 60, 120, 180, 240, 360, 720, 1_440, 2_880, 7_200)
OUTCOMES = (("finished", "finished"), ("retried", "retried"), ("cancelled", "cancelled"), ("snoozed", "snoozed"),
         ("died", "died"))  # fmt: skip
PERCENTILES = (("late_p50_ms", "p50"), ("late_p95_ms", "p95"), ("late_p99_ms", "p99"))


def html(facts: Facts) -> str:
    """Return the page as HTML. Texts from jobs are escaped."""
    end = from_ms(facts.end_ms)
    read = f"Data read at {from_ms(facts.taken_ms):%Y-%m-%d %H:%M:%S}. All times are UTC."
    parts = [
        f"<h1>Timeouts, {end:%A %d %B %Y}</h1>",
        f'<p class="quiet">Events up to {end:%H:%M}, and jobs that will fall due. {read}</p>',
        _tiles(facts), *_events(facts), *_lateness(facts), *_due(facts), *_needs(facts), *_topics(facts),
    ]  # fmt: skip
    return document(f"Timeouts, {end:%Y-%m-%d %H:%M} UTC", parts)


def join(title: str, pages: Sequence[str]) -> str:
    """Return one page with the contents of several pages of document(), in this order."""
    bodies = (page.partition(BODY_BEGIN)[2].rpartition(BODY_END)[0] for page in pages)
    return document(escape(title), [f"<section>\n{body}\n</section>" for body in bodies])


def document(title: str, parts: Sequence[str]) -> str:
    """Return an HTML document. title and parts are HTML; the parts are its body."""
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>\n<style>{CSS}</style></head>\n"
        f"{BODY_BEGIN}{body}{BODY_END}"
    )


def _tiles(facts: Facts) -> str:
    def total(hours: Sequence[Statistics], name: str) -> int:
        return sum(each.get(name, 0) for each in hours[-24:])

    tiles = [
        (_number(total(facts.hours, name)), label, _change(total(facts.hours, name), total(facts.before, name)), css)
        for name, label, css in (("finished", "finished in 24 h", ""), ("retried", "attempts retried", ""),
                                 ("died", "died", "bad" if total(facts.hours, "died") else ""))
    ]  # fmt: skip
    tiles.append((_number(sum(facts.minutes)), f"due in {len(facts.minutes) // 60} h", "", ""))
    tiles.append((_number(facts.overdue), "overdue now", "", ""))
    herd_label = "herd is coming" if len(facts.herds) == 1 else "herds are coming"
    tiles.append((_number(len(facts.herds)), herd_label, "", "bad" if facts.herds else ""))
    items = "".join(
        f'<li><b class="{css}">{number}</b>{label}<br>'
        f'<span class="quiet">{f"{change} on the week before" if change else "&nbsp;"}</span></li>'
        for number, label, change, css in tiles
    )
    return f'<ul class="tiles">{items}</ul>'


def _events(facts: Facts) -> list[str]:
    stacks = [(css, [float(each.get(name, 0)) for each in facts.hours]) for name, css in OUTCOMES]
    titles = [f"{_label(facts, n)}: " + ", ".join(f"{_number(each.get(name, 0))} {name}" for name, _ in OUTCOMES)
            for n, each in enumerate(facts.hours)]  # fmt: skip
    before = [float(sum(each.get(name, 0) for name, _ in OUTCOMES)) if each else None for each in facts.before]
    totals = [sum(values) for values in zip(*(v for _, v in stacks), strict=True)]
    top = charts.nice(max([*totals, *(v for v in before if v is not None)], default=0))
    chart = charts.bars(stacks, _days(facts), titles=titles, name="Events per hour in the last seven days", top=top)
    chart = charts.overlay(chart, charts.outline(before, top, "before"))
    return ["<h2>Events per hour</h2>", _legend([name for name, _ in OUTCOMES], before=True), chart]


def _lateness(facts: Facts) -> list[str]:
    series = [(css, [each.get(name) for each in facts.hours]) for name, css in PERCENTILES]
    chart = charts.lines(series, _days(facts), name="Lateness of first attempts, per hour", unit=format_duration)
    return ["<h2>Lateness of first attempts</h2>", _legend([css for _, css in PERCENTILES]), chart]


def _due(facts: Facts) -> list[str]:
    soon, later = facts.minutes[:SOON_MINUTES], facts.minutes
    herd_bars = {(each.minute_ms - facts.start_ms) // MINUTE_MS for each in facts.herds}
    elements = ["<h2>Jobs due in the next two hours, per minute</h2>",
                _due_bars(facts.start_ms, soon, 1, herd_bars, "Jobs due, per minute")]  # fmt: skip
    if len(later) > SOON_MINUTES:
        offset = facts.start_ms // MINUTE_MS % BIN_MINUTES  # bars start at full tens of minutes; the first is shorter
        padded = [0] * offset + list(later)
        bins = [sum(padded[at : at + BIN_MINUTES]) for at in range(0, len(padded), BIN_MINUTES)]
        herd_bars = {(place + offset) // BIN_MINUTES for place in herd_bars}
        start_ms, name = facts.start_ms - offset * MINUTE_MS, f"Jobs due, per {BIN_MINUTES} minutes"
        chart = _due_bars(start_ms, bins, BIN_MINUTES, herd_bars, name)
        elements += [f"<h2>Jobs due in {len(later) // 60} hours, per {BIN_MINUTES} minutes</h2>", chart]
    if facts.herds:
        head = '<tr><th>minute</th><th>jobs</th><th class="words">largest topics</th></tr>'
        rows = "".join(_herd_row(each) for each in facts.herds)
        elements += ["<h2>Herds</h2>", f'<div class="scroll"><table>{head}{rows}</table></div>']
    return elements


def _due_bars(start_ms: int, numbers: Sequence[int], width: int, herd_bars: set[int], name: str) -> str:
    """Return a chart of the jobs due, with one bar for `width` minutes. The bars in herd_bars have another colour."""
    other_values = [0.0 if n in herd_bars else float(number) for n, number in enumerate(numbers)]
    herd_values = [float(number) if n in herd_bars else 0.0 for n, number in enumerate(numbers)]
    at = [from_ms(start_ms + n * width * MINUTE_MS) for n in range(len(numbers))]
    titles = [f"{when:%a %H:%M}: {_number(number)}" for when, number in zip(at, numbers, strict=True)]
    fitting = (minutes for minutes in LABEL_MINUTES if len(numbers) * width <= minutes * MAX_LABELS)
    minutes_apart = next(fitting, LABEL_MINUTES[-1])
    labels = [_time(when) if (when.timestamp() // 60) % minutes_apart == 0 else "" for when in at]
    return charts.bars([("due", other_values), ("herd", herd_values)], labels, titles=titles, name=name)


def _time(when: datetime) -> str:
    """Return a label: the time of day, or the date at midnight."""
    return f"{when:%H:%M}" if when.hour or when.minute else f"{when:%a %d}"


def _needs(facts: Facts) -> list[str]:
    """Return the table of the hours with most work, in order of time."""
    needs = sorted((each for each in facts.needs if each.slots), key=lambda each: -each.work_ms)[:MAX_NEEDS]
    if not needs:
        return []
    head = "<tr><th>hour</th><th>jobs</th><th>slots</th><th>busy for</th><th>jobs without a run time</th></tr>"
    rows = "".join(_need_row(each) for each in sorted(needs, key=lambda each: each.hour_ms))
    most, shown = needs[0], "The hours with most work. " if len(needs) == MAX_NEEDS else ""
    hour = f"{from_ms(most.hour_ms):%A %d %B %H:%M}"
    peak = f"The hour with most work is {hour}: it needs {_slots(most.slots)} for {most.minutes} min."
    meaning = (
        "A slot runs one job at a time. The table shows how many slots can run the jobs of each hour within an "
        "hour, if each job takes the mean run time of its topic in the last two weeks. A job that takes longer than an "
        "hour needs one slot."
    )
    return [
        "<h2>Slots needed</h2>", f"<p>{peak}</p>", f'<p class="quiet">{shown}{meaning}</p>',
        f'<div class="scroll"><table>{head}{rows}</table></div>',
    ]  # fmt: skip


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{_number(number)} slots"


def _need_row(each: Need) -> str:
    cells = [_number(each.jobs), _number(each.slots), f"{each.minutes} min", _number(each.unknown)]
    return f"<tr><td>{from_ms(each.hour_ms):%a %d %b %H:%M}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _herd_row(each: Herd) -> str:
    topics = ", ".join(f"{escape(topic)} ({_number(number)})" for topic, number in each.topics)
    when = f"{from_ms(each.minute_ms):%a %d %b %H:%M}"
    return f'<tr><td>{when}</td><td>{_number(each.due)}</td><td class="words">{topics}</td></tr>'


def _topics(facts: Facts) -> list[str]:
    head = "".join(f"<th>{each}</th>" for each in (
        "topic", "24 hours", "events", "on the week before", "finished", "retried", "died", "p50", "p95", "p99",
        "mean run", "p95 run", "due", "overdue"))  # fmt: skip
    rows = "".join(_topic_row(each) for each in facts.topics)
    more = f'<p class="quiet">{facts.more_topics} more topics.</p>' if facts.more_topics else ""
    return ["<h2>Topics in the last 24 hours</h2>",
            f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>{more}']  # fmt: skip


def _topic_row(each: Topic) -> str:
    day = each.day
    cells = [charts.spark(each.hours), _number(day.get("happened", 0)),
             _change(day.get("happened", 0), each.before.get("happened", 0)) or "–",
             *(_number(day.get(name, 0)) for name in ("finished", "retried"))]  # fmt: skip
    died = day.get("died", 0)
    cells.append(f'<span class="bad">{_number(died)}</span>' if died else "0")
    cells += [format_duration(day[name]) if name in day else "–" for name, _ in PERCENTILES]
    cells += ["–" if ms is None else format_duration(ms) for ms in (each.run_mean_ms, each.run_p95_ms)]
    cells += [_number(each.due), _number(each.overdue)]
    return f"<tr><td>{escape(each.name)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


# Text


def _legend(names: Sequence[str], *, before: bool = False) -> str:
    items = "".join(f'<span><i style="background:var(--{name})"></i>{name}</span>' for name in names)
    dashed = "<span>- - - all events, a week before</span>" if before else ""
    return f'<p class="key quiet">{items}{dashed}</p>'


def _days(facts: Facts) -> list[str]:
    """Return the label of each hour: the date at midnight, "" for other hours."""
    at = [from_ms(facts.end_ms - (len(facts.hours) - n) * HOUR_MS) for n in range(len(facts.hours))]
    return [f"{when:%a %d}" if when.hour == 0 else "" for when in at]


def _label(facts: Facts, n: int) -> str:
    return f"{from_ms(facts.end_ms - (len(facts.hours) - n) * HOUR_MS):%a %d %b %H:%M}"


def _change(now: float, before: float) -> str:
    """Return the change from the week before in percent, or "" if the value of the week before is 0."""
    return f"{round(100 * (now - before) / before):+,} %" if before else ""


def format_duration(ms: float) -> str:
    """Format a duration in the largest unit that fits."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= unit:
            return f"{_number(ms / unit) if ms >= 100 * unit else f'{ms / unit:.3g}'} {name}"
    return f"{ms:.0f} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}"
