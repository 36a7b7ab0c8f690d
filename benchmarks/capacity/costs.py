"""What a job costs, measured. docs/explanation/scale.md says where each figure comes from."""

from dataclasses import dataclass, field

MICRO = 1e-6


@dataclass(frozen=True)
class HandlerCosts:
    """The costs of one job in one form of handler, in microseconds.

    process_us    a worker process is occupied, including its waits for PostgreSQL and the disk
    database_us   a core of the PostgreSQL server computes
    redis_us      Redis computes
    """

    process_us: float
    database_us: float
    redis_us: float


@dataclass(frozen=True)
class Costs:
    """Measured costs. Bytes are per job; times are microseconds of a core per job unless they say otherwise.

    pending_bytes, redis_bytes     a job that is not due: its row with indexes; its entry in Redis if it is due within
                                   the horizon
    ended_bytes, event_bytes       an ended job: its row with indexes; each of its events
    wal_bytes                      write-ahead log of a job: scheduled in bulk, claimed and finished
    archived_bytes                 an archived job with its events, in the lake
    schedule_one, schedule_bulk    scheduling a job: one call for each job, or schedule_many()
    archive_per_second             jobs that one archive run writes, compares and prunes per second
    index_seconds                  a CREATE INDEX, per million rows
    """

    pending_bytes: float = 602
    redis_bytes: float = 107
    ended_bytes: float = 600
    event_bytes: float = 190
    wal_bytes: float = 2_000
    archived_bytes: float = 58
    schedule_one: HandlerCosts = HandlerCosts(680, 175, 30)
    schedule_bulk: HandlerCosts = HandlerCosts(24, 14, 2.5)
    archive_per_second: float = 6_000
    index_seconds: float = 1.0
    handlers: dict[str, HandlerCosts] = field(
        default_factory=lambda: {
            "batch": HandlerCosts(72, 19, 10.5),
            "one-commit": HandlerCosts(95, 22, 14.5),
            "own": HandlerCosts(920, 275, 16),
            "update": HandlerCosts(1_230, 370, 17),
        }
    )


MEASURED = Costs()
