"""Render an audit's answer as one HTML page: each rule's classes, trend, weeks and dimensions."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from html import escape
from typing import Any

from ...clock import from_ms
from ..rules.rules import STATUSES
from . import charts
from .charts import percent
from .page import document, format_duration

MAX_KEYS = 3  # keys shown for each class
OUTCOMES = {"yes": "yes", "no": "no", "unknown": "not yet known"}
MAX_WEEKS = 26  # the newest weeks; the table audit/dimensions has all
MAX_VALUES = 100  # values shown for each dimension; the table has all


def html(rules: Sequence[Mapping[str, Any]], as_of_ms: int) -> str:
    """Return the page as HTML. Texts from rules and rows are escaped.

    rules     the results of the rules, as in the audit's answer
    as_of_ms  time of the audit's snapshot, in ms since 1970
    """
    as_of = from_ms(as_of_ms)
    parts = [f"<h1>Audit, {as_of:%A %d %B %Y}</h1>", f'<p class="quiet">As of {as_of:%H:%M:%S} UTC.</p>']
    for rule in rules:
        parts += [*_classes(rule), *_trend(rule["trend"]), *_weeks(rule)]
        parts += [part for name in rule["dimensions"] for part in _dimension(rule, name)]
    return document(f"Audit, {as_of:%Y-%m-%d %H:%M} UTC", parts)


def _classes(rule: Mapping[str, Any]) -> list[str]:
    rows = [
        (escape(name), _count_html(each["count"], bad=each["must_be_empty"]), "yes" if each["must_be_empty"] else "",
         escape(", ".join(str(sample["key"]) for sample in each["samples"][:MAX_KEYS])))
        for name, each in rule["classes"].items()
    ]  # fmt: skip
    counts = f"{rule['rows']:,} rows of {rule['source']}, {rule['jobs']:,} jobs of {rule['topic']}"
    head = ("class", "keys", "must be empty", "for example")
    title = [f"<h2>{escape(rule['name'])}</h2>", f'<p class="quiet">{escape(counts)}</p>']
    return [*title, _table(head, rows), *_outcome(rule["total"])]


def _outcome(total: Mapping[str, Any]) -> list[str]:
    if total["outcome_yes"] is None:
        return []
    counts = ", ".join(f"{total[f'outcome_{name}']:,} {text}" for name, text in OUTCOMES.items())
    share = "" if total["outcome_share"] is None else f" ({percent(total['outcome_share'])} yes)"
    return [f"<p>Outcome of the rows whose job has begun: {counts}{share}.</p>"]


def _trend(audits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sparkline of each figure over the last audits; nothing for a rule's first audit."""
    rows = []
    for name, label, text in TREND:
        values = [each[name] for each in audits if each[name] is not None]
        if len(values) > 1:
            floor = min(values) if name.endswith("_share") else 0
            shown = [text(value) for value in (values[0], min(values), max(values), values[-1])]
            rows.append((label, charts.spark(values, floor), *shown))
    if not rows:
        return []
    since = audits[0]["as_of"][:16].replace("T", " ")
    head = ("", "trend", "first", "least", "most", "now")
    return [f'<p class="quiet">The last {len(audits)} audits, since {since} UTC.</p>', _table(head, rows)]


def _weeks(rule: Mapping[str, Any]) -> list[str]:
    weeks = rule["weeks"][-MAX_WEEKS:]
    if not weeks:
        return []
    head = ("week from", "keys", *(name.replace("_", " ") for name in STATUSES))
    return [f"<h2>{escape(rule['name'])}, by the week of the first job</h2>", _table(head, map(_week, weeks))]


def _week(each: Mapping[str, Any]) -> list[str]:
    keys = sum(each[name] for name in STATUSES)
    counts = [f"{each[name]:,} ({percent(each[name] / keys)})" if each[name] else "0" for name in STATUSES]
    return [each["value"], f"{keys:,}", *counts]


def _dimension(rule: Mapping[str, Any], name: str) -> list[str]:
    values = rule["dimensions"][name]
    faults = [each for each, about in rule["classes"].items() if about["must_be_empty"]]
    shown = [each for each, about in rule["classes"].items() if about["count"]]
    priced = any(each["cost"] is not None for each in values)
    asked = any(each["outcome_yes"] is not None for each in values)
    costly = [each for each in shown if each in faults] if priced else []
    head = [name, "rows", "kept", "p50 late", "worst late", *shown]
    head += [f"outcome {text}" for text in OUTCOMES.values()] if asked else []
    head += ["cost", *(f"{each}, cost" for each in costly), "without amount"] if priced else []
    rows = [_value(each, shown, costly, faults) for each in values[:MAX_VALUES]]
    note = f'<p class="quiet">The table audit/dimensions has all {len(values):,} values.</p>'
    title = f"<h2>{escape(rule['name'])}, by {escape(name)}</h2>"
    return [title, _table([escape(each) for each in head], rows) + (note if len(values) > MAX_VALUES else "")]


def _value(each: Mapping[str, Any], shown: list[str], costly: list[str], faults: list[str]) -> list[str]:
    share = "–" if each["kept_share"] is None else percent(each["kept_share"])
    cells = ["(none)" if each["value"] is None else escape(each["value"]), f"{each['rows']:,}", share]
    cells += ["–" if each[ms] is None else format_duration(each[ms]) for ms in ("late_p50_ms", "late_worst_ms")]
    cells += [_count_html(each["classes"][name], bad=name in faults) for name in shown]
    if each["outcome_yes"] is not None:
        cells += [f"{each[f'outcome_{name}']:,}" for name in OUTCOMES]
    if each["cost"] is not None:
        amounts = [each["cost"], *(each["amounts"][name] for name in costly)]
        cells += [*(f"{Decimal(amount):,}" for amount in amounts), f"{each['without_amount']:,}"]
    return cells


TREND = (
    ("kept_share", "kept", percent), ("faults", "faults", charts.count), ("late_p50_ms", "p50 late", format_duration),
    ("late_worst_ms", "worst late", format_duration), ("outcome_share", "outcome yes", percent),
)  # fmt: skip


def _count_html(number: int, *, bad: bool) -> str:
    return f'<span class="bad">{number:,}</span>' if bad and number else f"{number:,}"


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. The cells are HTML and are not escaped."""
    lines = ["".join(f"<th>{each}</th>" for each in head)]
    lines += ["".join(f"<td>{each}</td>" for each in row) for row in rows]
    return '<div class="scroll"><table>' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"
