"""The board's tiles: a number with notes and a level (ok, warning, error)."""

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import Any

from django.db.models import Model
from django.utils import translation
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf
from ...db.counts import NOTHING, Count, total
from ...models import Job, Schedule, Topic
from ...monitoring import health, last_hour, readiness
from ...monitoring.advice import ADVICE, Problem
from ...monitoring.forecast import Forecast, TopicStatus, TopicStatuses
from ...monitoring.last_hour import EventCounts, LastHour
from ...states import FAILURES, Outcome
from ..lateness import SLOW_MS, STUCK_MS
from .labels import MAX_NAMES, names, number, span, topic_counts

Json = dict[str, Any]
ListUrl = Callable[[type[Model]], str]  # "" if there is no list that the user may view
OK, WARNING, ERROR, PLAIN = "ok", "warning", "error", ""
AUDITS_MISSED = 3  # after this many missed audits, it is unknown whether the mirror is correct
ATTEMPTS = (*FAILURES, Outcome.FINISHED, Outcome.SNOOZED, Outcome.RELEASED, Outcome.SKIPPED)  # outcomes that end one
MAX_FAILED_RATIO = 0.1  # failed attempts divided by all attempts; the tile shows a warning above it


def tile(
    name: str, label: str, value: str, *notes: str, level: str = PLAIN, url: str = "", problem: Problem | None = None
) -> Json:
    """Return a tile as JSON.

    url     the page that lists what the number counts
    problem   given if the level is WARNING or ERROR: the tile shows what to do about it
    """
    level_text = {OK: "", PLAIN: "", WARNING: _("needs attention"), ERROR: _("problem")}[level]
    return {
        "name": name, "label": label, "value": value, "url": url, "notes": [n for n in notes if n],
        "level": level, "level_text": level_text, "advice": None if problem is None else _advice(problem),
    }  # fmt: skip


def _advice(problem: Problem) -> Json:
    """Return the advice and the runbook's section: a link if RUNBOOK_URL is set, otherwise a path without a link."""
    advice, is_link = ADVICE[problem], bool(conf.get().runbook_url)
    return {
        "text": translation.gettext(advice.text),
        "runbook": _("Runbook") if is_link else advice.address,
        "url": advice.address if is_link else "",
    }


def due_tiles(minutes: Forecast, hours: Forecast) -> Iterator[Json]:
    day = max(hours.sum, minutes.sum, key=attrgetter("number"))  # the hours are older than the minutes
    note = _("%(number)s in the next 24 hours") % {"number": number(day)}
    yield tile("due", _("Due in the next hour"), number(minutes.sum), note)


# -- current state ------------------------------------------------------------------------------------


def status_tiles(all_statuses: TopicStatuses, list_url: ListUrl, topic: str = "") -> Iterator[Json]:
    statuses, job_list = all_statuses.topics, list_url(Job)
    scope = "" if all_statuses.complete else _("counted for %(n)d topics only; there are more") % {"n": len(statuses)}

    def jobs(state: str) -> str:
        query = {"state": state} | ({"topic": topic} if topic else {})
        return f"{job_list}?{urlencode(query)}" if job_list else ""

    def sum_of(counts: Iterable[Count]) -> str:
        return number(total([*counts, Count(0, all_statuses.complete)]))

    ready = sum_of(each.ready for each in statuses.values())
    level, problem, notes = _waiting(statuses, all_statuses.complete)
    yield tile("ready", _("Due and waiting"), ready, *notes, scope, level=level, url=jobs("ready"), problem=problem)
    running = sum_of(Count(each.reserved) for each in statuses.values())
    yield tile("reserved", _("Running"), running, scope, url=jobs("reserved"))
    dead = sum_of(each.dead for each in statuses.values())
    yield tile("dead", _("Dead, not retried yet"), dead, *_top_topics(statuses, "dead"), scope, url=jobs("dead"))
    paused = [name for name, each in statuses.items() if each.paused]
    if paused:
        topics, many = list_url(Topic), number(Count(len(paused), all_statuses.complete))
        notes = [names(paused), scope]
        yield tile("paused", _("Paused topics"), many, *notes, level=WARNING, url=topics, problem=Problem.PAUSED)


def _waiting(statuses: dict[str, TopicStatus], complete: bool) -> tuple[str, Problem | None, list[str]]:
    """Return (level, problem, notes) for the tile of the jobs that are due and waiting."""
    waiting = {name: each for name, each in statuses.items() if each.oldest_ready_ms is not None}
    oldest = max((each.oldest_ready_ms or 0 for each in waiting.values()), default=None)
    stuck = max((each.oldest_ready_ms or 0 for each in waiting.values() if not each.paused), default=0)
    unknown = [name for name, each in waiting.items() if not each.known]
    notes = [_("the oldest for %(span)s") % {"span": span(oldest)}] if oldest is not None else []
    if complete and not any(each.ready.number for each in statuses.values()):  # held jobs are not in `waiting`
        notes = [_("nothing is overdue")]
    if unknown:
        notes.append(_("no handler for %(topics)s in this web process") % {"topics": names(unknown)})
    if stuck >= SLOW_MS:
        return (ERROR if stuck >= STUCK_MS else WARNING), Problem.READY, notes
    return (WARNING, Problem.NO_HANDLER, notes) if unknown else (OK, None, notes)


def _top_topics(statuses: dict[str, TopicStatus], state: str) -> list[str]:
    """Return a note with the topics that have the most jobs in this state; [] if no topic has any."""
    most = sorted(statuses.items(), key=lambda pair: -getattr(pair[1], state).number)
    with_any = [(name, getattr(each, state)) for name, each in most if getattr(each, state) != NOTHING]
    return [topic_counts(with_any[:MAX_NAMES])] if with_any else []


def health_tiles(status: health.Health) -> Iterator[Json]:
    yield _mover_tile(status)
    yield _beat_tile(status)
    notes = [_audit_note(status)] if status.mirror == "up" else [_("due jobs are read from the database")]
    if status.mirror == "up" and status.repaired:
        many = ngettext("%(n)s missed job was put back", "%(n)s missed jobs were put back", status.repaired)
        notes.append(many % {"n": number(status.repaired)})
    rebuilt = status.rebuilt - 1  # the first rebuild is the initial fill
    if rebuilt > 0:
        notes.append(ngettext("rebuilt %(n)s time", "rebuilt %(n)s times", rebuilt) % {"n": number(rebuilt)})
    level, problem = _mirror_level(status)
    value = {"up": _("up"), "read_only": _("read-only"), "down": _("down"), "off": _("off")}[status.mirror]
    yield tile("mirror", _("Mirror"), value, *notes, level=level, problem=problem)


def _mirror_level(status: health.Health) -> tuple[str, Problem | None]:
    """Return the level of the mirror's tile, and its problem."""
    if status.mirror == "down":
        return ERROR, Problem.MIRROR_DOWN
    if status.mirror == "read_only":
        return ERROR, Problem.MIRROR_READ_ONLY
    if status.mirror == "off":
        return PLAIN, None
    if status.differences:
        return WARNING, Problem.MIRROR_DIFFERS
    is_old = (status.audit_age_ms or 0) > AUDITS_MISSED * conf.get().audit_seconds * 1000
    return (WARNING, Problem.MIRROR_NOT_COMPARED) if is_old else (OK, None)


def _mover_tile(status: health.Health) -> Json:
    if status.heartbeat_age_ms is None:
        note = _("no beat or worker has checked for due jobs yet")
        return tile("mover", _("Mover"), _("none yet"), note, level=ERROR, problem=Problem.WORKERS)
    checked = _("last check %(span)s ago") % {"span": span(status.heartbeat_age_ms)}
    if status.moving:
        return tile("mover", _("Mover"), _("alive"), checked, level=OK)
    return tile("mover", _("Mover"), _("silent"), checked, level=ERROR, problem=Problem.MOVER)


def _beat_tile(status: health.Health) -> Json:
    """Return the tile of Celery's beat: whether a worker has recently run the sweep, which beat sends."""
    if readiness.is_sweeping(status):
        checked = _("last sweep %(span)s ago") % {"span": span(status.sweep_age_ms)}
        return tile("beat", _("Beat"), _("alive"), checked, level=OK)
    if status.sweep_age_ms is None:
        value, note = _("none yet"), _("no worker has run the sweep yet")
    else:
        value, note = _("silent"), _("last sweep %(span)s ago") % {"span": span(status.sweep_age_ms)}
    return tile("beat", _("Beat"), value, note, level=ERROR, problem=Problem.BEAT)


def schedule_tiles(problems: health.ScheduleProblems, list_url: ListUrl) -> Iterator[Json]:
    """Yield a tile only if schedules are behind or stopped."""
    url = list_url(Schedule)
    if problems.behind_ms is not None:
        value, note = span(problems.behind_ms), _("behind: their next runs have not been made")
        yield tile("schedules", _("Schedules"), value, note, level=ERROR, url=url, problem=Problem.SCHEDULES_BEHIND)
    elif problems.stopped:
        value, note = _("stopped"), names(problems.stopped)
        yield tile("schedules", _("Schedules"), value, note, level=WARNING, url=url, problem=Problem.SCHEDULES_STOPPED)


def _audit_note(status: health.Health) -> str:
    if status.audit_age_ms is None:
        return _("not yet compared with the database")
    if status.differences:  # not a part of `checked`: entries without a row differ as well
        text = ngettext(
            "%(found)s difference was repaired %(span)s ago",
            "%(found)s differences were repaired %(span)s ago",
            status.differences,
        )
    else:
        text = ngettext(
            "agreed with the database on %(checked)s job %(span)s ago",
            "agreed with the database on %(checked)s jobs %(span)s ago",
            status.checked,
        )
    return text % {
        "found": number(status.differences), "checked": number(status.checked), "span": span(status.audit_age_ms),
    }  # fmt: skip


# -- last hour -----------------------------------------------------------------------------------


def hour_tiles(hour: LastHour, topics: Collection[str] | None) -> Iterator[Json]:
    """Yield the tiles of the last hour. If not all of it was counted, the tile "finished" has a note."""
    per_topic = hour.topics(topics)
    tally = last_hour.total(per_topic.values())
    minutes = hour.minutes_counted
    finished, died = tally.outcomes[Outcome.FINISHED], tally.outcomes[Outcome.DEAD]
    rate = _("%(number)s a minute") % {"number": f"{finished / minutes:,.1f}"}
    part = ngettext(
        "of the last minute only: too many events to count",
        "of the last %(n)d minutes only: too many events to count",
        int(minutes),
    )
    known = "" if hour.complete else part % {"n": minutes}
    yield tile("finished", _("Finished, last hour"), number(finished), rate, known)
    yield _late_tile(tally)
    failed, attempts = (sum(tally.outcomes[each] for each in outcomes) for outcomes in (FAILURES, ATTEMPTS))
    level, problem = (WARNING, Problem.FAILED) if failed > MAX_FAILED_RATIO * attempts else (PLAIN, None)
    expired = number(tally.outcomes[Outcome.EXPIRED])
    note = _("%(number)s exceeded their TTR or lost their worker") % {"number": expired}
    yield tile("wrong", _("Failed attempts, last hour"), number(failed), note, level=level, problem=problem)
    most = sorted(per_topic.items(), key=lambda pair: -pair[1].outcomes[Outcome.DEAD])
    by_topic = [(name, Count(each.outcomes[Outcome.DEAD])) for name, each in most if each.outcomes[Outcome.DEAD]]
    level, problem = (ERROR, Problem.DIED) if died else (OK, None)
    yield tile(
        "died", _("Died, last hour"), number(died), topic_counts(by_topic[:MAX_NAMES]), level=level, problem=problem
    )


def _late_tile(tally: EventCounts) -> Json:
    p50, p99 = tally.late_ms(0.5), tally.late_ms(0.99)
    if p50 is None or p99 is None:
        return tile("late", _("Late, p99 of the last hour"), "–", _("no job was started"))
    level = ERROR if p99 >= STUCK_MS else WARNING if p99 >= SLOW_MS else OK
    half = _("p50 %(half)s, the worst %(worst)s") % {"half": span(p50), "worst": span(tally.worst_ms)}
    return tile(
        "late",
        _("Late, p99 of the last hour"),
        span(p99),
        half,
        level=level,
        problem=None if level == OK else Problem.LATE,
    )
