"""A copy of the alert rules in which all times are shorter, and what that means for an alert's time.

The rules are for a scrape every 15 or 30 s; a game day scrapes every two. So all times of the rules are divided by 15:
`for`, ranges, offsets, and the ages of a minute or more that a metric is compared with. An age that the engine sets
itself stays, such as that of a mover's heartbeat.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
FACTOR = 15
REAL_LEASE_SECONDS, LEASE_SECONDS = 30, 10  # two seconds would be too short for a busy machine
SECONDS_OF = {"s": 1, "m": 60, "h": 3600}
LONG_SECONDS = 60
_DURATION = re.compile(r"(?<=\[|\s)(\d+)([smh])(?=\]|\)|\s|$)")
_AGE = re.compile(r"(_seconds\)+ > )(\d+)")
# A mean below a half, and a median, are true after half of their range.
_HALF = re.compile(r"(?:avg_over_time\(|quantile_over_time\(0\.5, )\w+\[(\w+)\]\)+ [<>] [\d.]+")
# The engine itself needs so much longer with its real settings to see the condition.
_ENGINE_SECONDS = {"DelaytasksWorkerLost": REAL_LEASE_SECONDS - LEASE_SECONDS}


class Rule(NamedTuple):
    """An alert.

    page             where its annotation leads, such as docs/howto/runbook.md#beat
    for_seconds      how long its condition has to last, with the real rules
    later_seconds    how much later its condition is true with the real rules
    """

    name: str
    severity: str
    page: str
    for_seconds: float
    later_seconds: float


def seconds(duration: str) -> int:
    """Return the seconds of a duration such as 2m or 1h."""
    return int(duration[:-1]) * SECONDS_OF[duration[-1]]


def shorten(document: dict[str, Any]) -> dict[str, Any]:
    """Return the rules with all their times divided by FACTOR."""
    return {"groups": [group | {"rules": list(map(_short, group["rules"]))} for group in document["groups"]]}


def _short(rule: dict[str, Any]) -> dict[str, Any]:
    expr = _DURATION.sub(lambda found: f"{seconds(found[0]) // FACTOR}s", rule["expr"])
    short = rule | {"expr": _AGE.sub(lambda found: found[1] + str(_short_age(int(found[2]))), expr)}
    return short | ({"for": f"{seconds(rule['for']) // FACTOR}s"} if "for" in rule else {})


def _short_age(age_seconds: int) -> int:
    return age_seconds // FACTOR if age_seconds >= LONG_SECONDS else age_seconds


def read(document: dict[str, Any]) -> dict[str, Rule]:
    """Return the alerts of the real rules by name."""
    return {rule["alert"]: _rule(rule) for group in document["groups"] for rule in group["rules"]}


def _rule(rule: dict[str, Any]) -> Rule:
    name, ages = rule["alert"], [int(age) for _, age in _AGE.findall(rule["expr"])]
    halves = [seconds(duration) / 2 for duration in _HALF.findall(rule["expr"])]
    later = sum(age - _short_age(age) for age in ages) + sum(half - half / FACTOR for half in halves)
    for_seconds = seconds(rule["for"]) if "for" in rule else 0
    return Rule(
        name,
        rule["labels"]["severity"],
        rule["annotations"]["runbook"],
        for_seconds,
        later + _ENGINE_SECONDS.get(name, 0),
    )


def load() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(ALERTS.read_text())
    return document
