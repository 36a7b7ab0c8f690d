"""Everything delaytasks raises on purpose. A message says what was asked, what was found and what to do."""


def shown(value: object) -> str:
    """A short repr of a value for a message; an integer of thousands of digits cannot be printed."""
    try:
        return f"{value!r:.120}"
    except (ValueError, RecursionError):
        return f"{type(value).__name__} too large to print"


class DelaytasksError(Exception):
    """Base of every exception of this package."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class BadInput(DelaytasksError, ValueError):
    """What was asked cannot be done as it stands; nothing was written."""


class NaiveDatetime(BadInput):
    """A due time needs a time zone."""


class BadDelay(BadInput):
    """Give exactly one of delay and due_at, within the range."""


class BadBody(BadInput):
    """The body is not JSON that every database can keep."""


class BodyTooLarge(BadBody):
    """The body is larger than MAX_BODY_BYTES."""


class BadKey(BadInput):
    """A key is 1 to 255 printable characters."""


class BadTTR(BadInput):
    """A TTR is more than 0 seconds and at most seven days."""


class BadCursor(BadInput):
    """The cursor is not one that a page of this list gave."""


class UnknownTopic(BadInput):
    """No handler, no setting and no Topic row knows this topic."""


class BadTopic(BadInput):
    """A topic's name is 1 to 100 of A-Z a-z 0-9 . _ - and begins with a letter or digit."""


class KeyIsLive(DelaytasksError):
    """A live job with this topic and key exists and on_conflict is "reject"."""


class NotLive(DelaytasksError):
    """No live job has this topic and key."""


class NotDead(DelaytasksError):
    """Only a dead job can be retried."""


class Reserved(DelaytasksError):
    """The job is reserved: its handler is running."""


class MovedMeanwhile(DelaytasksError):
    """The job is not due any more when its caller saw that it was: somebody has moved it."""


class LeaseLost(DelaytasksError):
    """This attempt no longer holds the job: its TTR passed, or somebody else ended it."""


class TransactionLeftOpen(DelaytasksError):
    """A handler began a transaction and did not end it: it was rolled back."""


class MirrorDown(DelaytasksError):
    """Redis does not answer, or none is configured. The database goes on without it."""


class ArchiveUnreadable(DelaytasksError):
    """The archive may know the job, and cannot be read."""


class TTRExceeded(BaseException):
    """The handler ran longer than its TTR.

    Not an Exception, so that `except Exception` in a handler does not swallow it.
    """
