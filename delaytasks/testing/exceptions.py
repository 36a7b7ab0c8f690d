"""The exceptions of the test kit."""

from ..exceptions import DelaytasksError


class TestKitError(DelaytasksError):
    """The test kit cannot do this."""

    __test__ = False  # so that pytest does not collect this class


class ClockConflict(TestKitError):
    """Another library has replaced the clock in a way that the test kit cannot follow.

    Raised while freezegun is active: it also stops time.monotonic(). Move the time with the kit's advance(), or use
    time-machine, whose clock the kit follows.
    """


class RedisInUse(TestKitError):
    """A live worker uses the Redis of DELAYTASKS["REDIS_URL"], which the test kit does not share with it."""


class TooManyRuns(TestKitError):
    """One advance ran too many jobs: a handler probably schedules its next job without a delay."""


class ProcessDied(BaseException):
    """The death of a process, simulated by die_in(). Not an Exception, so that handlers do not catch it."""
