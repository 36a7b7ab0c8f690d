"""The exceptions of delaytasks. Each message says what was asked, what was found and what to do.

    DelaytasksError              base of all but TTRExceeded
        BadInput                 an argument is wrong; also a ValueError. Nothing was written
            UnknownTopic, BadTopic, BadKey, BadDelay, NaiveDatetime, BadTTR, BadBody, BodyTooLarge, BadCursor,
            BadTimeZone, BadCalendar, NoOpenHours, BadSchedule, ScheduleExists
        KeyIsLive, NotLive, NotDead, Reserved, MovedMeanwhile    the job's state does not allow the change
        LeaseLost, TransactionLeftOpen                           a handler's attempt went wrong
        MirrorDown, ArchiveUnreadable                            Redis or the archive is not available
    TTRExceeded                  a BaseException that interrupts a handler

The first line of an exception's docstring is its default message.
"""

__all__ = [
    "ArchiveUnreadable", "BadBody", "BadCalendar", "BadCursor", "BadDelay", "BadInput", "BadKey", "BadSchedule",
    "BadTTR", "BadTimeZone", "BadTopic", "BodyTooLarge", "DelaytasksError", "KeyIsLive", "LeaseLost", "MirrorDown",
    "MovedMeanwhile", "NaiveDatetime", "NoOpenHours", "NotDead", "NotLive", "Reserved", "ScheduleExists",
    "TTRExceeded", "TransactionLeftOpen", "UnknownTopic",
]  # fmt: skip


def short_repr(value: object) -> str:
    """Return a short repr of a value for a message. repr() raises for an integer of thousands of digits."""
    try:
        text = f"{value!r:.120}"
    except (ValueError, RecursionError):
        return f"{type(value).__name__} too large to print"
    # The repr() of gettext_lazy("paid") is that of a str, which would not show why it is refused.
    return f"lazy text {text}" if text.startswith(("'", '"')) and not isinstance(value, str) else text


class DelaytasksError(Exception):
    """Base of every exception of this package."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip().partition("\n")[0])


class BadInput(DelaytasksError, ValueError):
    """An argument is wrong; nothing was written.

    Base of the exceptions about arguments. Raised directly for an argument that has none of its own, such as subject,
    priority, on_conflict, using, by or reason.
    """


class NaiveDatetime(BadInput):
    """A due time needs a time zone.

    Raised by schedule(), schedule_many(), reschedule() and the methods of Calendar.
    """


class BadDelay(BadInput):
    """Give exactly one of delay and due_at, within the range.

    The range is 0 to MAX_DELAY_SECONDS. Raised by schedule(), schedule_many() and reschedule(). Also by Snooze,
    Retry, poll() and levels(), and for expires=, where the limit is 366 days.
    """


class BadBody(BadInput):
    """The body is not JSON that every database can store.

    Infinite numbers, NaN, NUL characters and more than 100 levels of nesting are refused too. Raised by
    schedule() and schedule_many().
    """


class BodyTooLarge(BadBody):
    """The body is larger than MAX_BODY_BYTES.

    Raised by schedule() and schedule_many().
    """


class BadKey(BadInput):
    """A key is 1 to 255 printable characters.

    Raised by each function that takes a key.
    """


class BadTTR(BadInput):
    """A TTR is more than 0 seconds and at most seven days.

    Raised by handler(), schedule() and schedule_many().
    """


class BadCursor(BadInput):
    """The cursor is not from a page of this list.

    Raised by the lists of the HTTP API, the commands and the admin.
    """


class BadTimeZone(BadInput):
    """A time zone is an IANA name, such as 'Europe/Berlin'.

    Raised by Calendar, recurring() and schedule(), and where staff define schedules.
    """


class BadCalendar(BadInput):
    """The definition of a calendar is wrong.

    Raised by Calendar, and where staff enter open hours.
    """


class NoOpenHours(BadInput):
    """The calendar has no such opening, closing or working time within 20 years.

    Raised by the methods of Calendar.
    """


class BadSchedule(BadInput):
    """The times of a schedule are wrong, or it would never run.

    Raised by recurring(), by schedule() for a series, and where staff define schedules.
    """

    range_problem = ""  # of a range to backfill: "backwards", "future", "long" or "unknown"


class ScheduleExists(BadSchedule):
    """There is a schedule of this name already.

    Raised where schedules are created, such as POST /api/schedules/.
    """


class UnknownTopic(BadInput):
    """This topic has no handler, no setting and no Topic row.

    Raised by schedule(), schedule_many(), cancel() and cancel_many().
    """


class BadTopic(BadInput):
    """A topic's name is 1 to 100 of A-Z a-z 0-9 . _ - and begins with a letter or digit.

    Raised by handler() and by each function that takes a topic.
    """


class KeyIsLive(DelaytasksError):
    """A live job with this topic and key exists and on_conflict is "reject".

    Raised by schedule() and schedule_many(), and by retry_dead() if a later job has the key.
    """

    may_pass = False  # True: other transactions changed the key's job in each try; another call may succeed


class NotLive(DelaytasksError):
    """No live job has this topic and key.

    It finished, was cancelled, is dead or never existed. Raised by reschedule() and run_now().
    """


class NotDead(DelaytasksError):
    """Only a dead job can be retried.

    Raised by retry_dead().
    """


class Reserved(DelaytasksError):
    """The job is reserved: its handler is running.

    Raised by reschedule(), run_now() and schedule(on_conflict="replace"). Also where a handler with
    atomic=False schedules its own key outside `with job.finishing():`.
    """


class MovedMeanwhile(DelaytasksError):
    """The job's due time has changed since the caller read it.

    Raised by a postponement in the admin.
    """


class LeaseLost(DelaytasksError):
    """This attempt no longer holds the job: it exceeded its TTR, or the job was ended elsewhere.

    Raised by RunningJob.touch() and RunningJob.finishing(). Also raised when a handler returns too late: its
    transaction is then rolled back. A handler should not catch it.
    """


class TransactionLeftOpen(DelaytasksError):
    """The handler left a transaction open; it was rolled back.

    The attempt counts as failed.
    """


class MirrorDown(DelaytasksError):
    """Redis does not answer or is not configured; the database is used instead.

    Never raised by schedule(), cancel() and the other public functions.
    """


class ArchiveUnreadable(DelaytasksError):
    """The archive that may contain the job cannot be read.

    Raised on reading the history of a job whose row may have been archived.
    """


class TTRExceeded(BaseException):
    """The handler ran longer than its TTR.

    Raised inside the handler, at any point. Not an Exception, so that `except Exception` in a handler does not
    catch it. Do not catch it.
    """
