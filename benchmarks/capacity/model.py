"""The servers and processes that a workload needs.

Limits: the costs were measured on two cores. That PostgreSQL does proportionally more with more cores is assumed, up to
`Host.busy`; the size of the hosts is a choice. The simulation checks the number of worker processes and nothing else.
"""

import math
from dataclasses import dataclass

from .costs import MEASURED, MICRO, Costs, HandlerCosts

DAY_SECONDS = 86_400
HERDS_PER_DAY = 24
PERCENTILE = 0.99
THREADS_PER_WORKER = 3  # of a worker's main process, each with a connection: mover, heartbeat, beat


@dataclass(frozen=True)
class Workload:
    """What is asked of the installation.

    pending           jobs that wait at the same time
    due_per_day       jobs that become due in a day, herds included
    peak              the busiest second divided by the average one, without herds
    herd              jobs that become due at one instant, each full hour
    promise_seconds   99 of 100 jobs begin at most so long after their due time, also in a herd
    handler           batch, one-commit, own or update: see costs.py
    handler_ms        what the handler itself waits or computes, per job
    bulk              jobs are scheduled with schedule_many()
    retries           further attempts per job: 0.01 if each hundredth job fails once
    hot_days          days that ended jobs stay in the database
    archive_days      days that they stay in the lake
    horizon_seconds   HORIZON_SECONDS: jobs that are due sooner have an entry in Redis

    Raises ValueError, which names what cannot be.
    """

    pending: float
    due_per_day: float
    peak: float = 5.0
    herd: float = 0.0
    promise_seconds: float = 5.0
    handler: str = "own"
    handler_ms: float = 0.0
    bulk: bool = False
    retries: float = 0.01
    hot_days: float = 2.0
    archive_days: float = 365.0
    horizon_seconds: float = 3_600.0

    def __post_init__(self) -> None:
        if self.handler not in MEASURED.handlers:
            raise ValueError(f"handler is {self.handler!r}: use one of {', '.join(MEASURED.handlers)}.")
        for name in ("pending", "due_per_day", "promise_seconds", "horizon_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be a finite number above 0.")
        for name in ("herd", "handler_ms", "retries", "hot_days", "archive_days"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be a finite number, 0 or more.")
        if not 1 <= self.peak < math.inf:
            raise ValueError(
                f"peak is {self.peak}: it must be a finite number, 1 or more: the busiest second by the average one."
            )
        if self.herd * HERDS_PER_DAY > self.due_per_day:
            raise ValueError(
                f"{HERDS_PER_DAY} herds of {self.herd:,.0f} are more than the {self.due_per_day:,.0f} jobs of a day: "
                "give a smaller herd or more jobs."
            )

    @property
    def base_rate(self) -> float:
        """Jobs per second that become due on average, without herds."""
        return (self.due_per_day - HERDS_PER_DAY * self.herd) / DAY_SECONDS

    @property
    def peak_rate(self) -> float:
        return self.base_rate * self.peak

    @property
    def begun_rate(self) -> float:
        """Attempts per second while a herd runs, or at the peak."""
        return max(self.peak_rate * (1 + self.retries), self.herd / self.promise_seconds)


@dataclass(frozen=True)
class Host:
    """The sizes of servers: a choice, not a measurement.

    cores, busy        cores of a database server, and the part of them that may be in use
    disk_bytes         the largest tables, with indexes, that one database may have: CREATE INDEX, dump and vacuum take
                       time in proportion
    wal_bytes          write-ahead log per second that its disk and its standby take
    connections        connections that it accepts
    redis_bytes        memory of a Redis master
    redis_busy         the part of its core that a Redis master may use
    processes          worker processes of one host
    pool               connections of a process that schedules: DATABASE_POOL_SIZE of the example project
    """

    cores: float = 16
    busy: float = 0.5
    disk_bytes: float = 500e9
    wal_bytes: float = 100e6
    connections: float = 1_000
    redis_bytes: float = 16e9
    redis_busy: float = 0.5
    processes: int = 16
    pool: int = 10


@dataclass(frozen=True)
class Needs:
    """What a workload needs.

    connections           to each database at most: of workers, and pools
    pooled_connections    those of them in the pools of processes that schedule
    loads                 resource -> how many servers of its kind it would occupy; the largest is the limit
    """

    service_seconds: float
    processes: int
    worker_hosts: int
    scheduling_processes: int
    databases: int
    connections: int
    pooled_connections: int
    table_bytes: float
    wal_bytes_per_second: float
    index_minutes: float
    masters: int
    redis_bytes: float
    archive_bytes: float
    archive_hours: float
    loads: dict[str, float]

    @property
    def limit(self) -> str:
        """The resource that needs the most servers."""
        return max(self.loads, key=lambda name: self.loads[name])


def needs(workload: Workload, host: Host | None = None, costs: Costs = MEASURED) -> Needs:
    """Return what the workload needs on hosts of this size."""
    host = host or Host()
    making = costs.schedule_bulk if workload.bulk else costs.schedule_one
    service = service_seconds(workload, costs)
    processes = worker_processes(workload, service)
    worker_hosts = math.ceil(processes / host.processes)
    scheduling_processes = math.ceil(workload.peak_rate * making.process_us * MICRO)
    pooled = scheduling_processes * host.pool
    connections = processes + worker_hosts * THREADS_PER_WORKER + pooled
    loads = {
        "PostgreSQL's cores": database_cores(workload, making, costs) / (host.cores * host.busy),
        "PostgreSQL's tables": table_bytes(workload, costs) / host.disk_bytes,
        "PostgreSQL's write-ahead log": workload.begun_rate * costs.wal_bytes / host.wal_bytes,
        "PostgreSQL's connections": connections / host.connections,
        "Redis's memory": entries(workload) * costs.redis_bytes / host.redis_bytes,
        "Redis's core": redis_cores(workload, making, costs) / host.redis_busy,
        "worker processes": processes / host.processes,
    }
    # More databases need no fewer connections each: every process connects to every database.
    databases = math.ceil(max(loads[f"PostgreSQL's {part}"] for part in ("cores", "tables", "write-ahead log")))
    rows = workload.pending + workload.due_per_day * workload.hot_days
    return Needs(
        service_seconds=service,
        processes=processes,
        worker_hosts=worker_hosts,
        scheduling_processes=scheduling_processes,
        databases=databases,
        connections=connections,
        pooled_connections=pooled,
        table_bytes=table_bytes(workload, costs),
        wal_bytes_per_second=workload.begun_rate * costs.wal_bytes,
        index_minutes=rows / databases / 1e6 * costs.index_seconds / 60,
        masters=math.ceil(max(loads["Redis's memory"], loads["Redis's core"])),
        redis_bytes=entries(workload) * costs.redis_bytes,
        archive_bytes=workload.due_per_day * workload.archive_days * costs.archived_bytes,
        archive_hours=workload.due_per_day / databases / costs.archive_per_second / 3600,
        loads=loads,
    )


def service_seconds(workload: Workload, costs: Costs = MEASURED) -> float:
    """Return how long one attempt occupies a worker process."""
    return costs.handlers[workload.handler].process_us * MICRO + workload.handler_ms / 1000


def worker_processes(workload: Workload, service: float) -> int:
    """Return the smallest number of processes that keeps the promise at the peak and in each herd.

    With n processes the last hundredth of a herd begins 0.99 * herd * service / n seconds late. Jobs that become due
    later do not delay it, because the oldest due job is begun first. Service times vary as much as their mean: the herd
    counts as larger by three standard deviations of their sum.
    """
    first = PERCENTILE * workload.herd
    for_herd = math.ceil((first + 3 * math.sqrt(first)) * service / workload.promise_seconds)
    load = workload.peak_rate * (1 + workload.retries) * service
    return max(for_herd, _for_peak(load, workload.promise_seconds / service))


def _for_peak(load: float, promise: float) -> int:
    """Return the smallest number of processes with which no more than a hundredth of the jobs wait for too long.

    load      processes that are busy on average
    promise   in units of the service time
    """
    count = math.floor(load) + 1
    while _waiting(count, load) * math.exp(-(count - load) * promise) > 1 - PERCENTILE:
        count += 1
    return count


def _waiting(count: int, load: float) -> float:
    """Return the part of the jobs that have to wait, by Erlang's formula C."""
    blocked = 1.0
    for n in range(1, count + 1):
        blocked = load * blocked / (n + load * blocked)
    return count * blocked / (count - load * (1 - blocked))


def database_cores(workload: Workload, making: HandlerCosts, costs: Costs) -> float:
    """Return the cores of PostgreSQL that are busy while a herd runs, or at the peak."""
    run = workload.begun_rate * costs.handlers[workload.handler].database_us
    return (run + workload.peak_rate * making.database_us) * MICRO


def redis_cores(workload: Workload, making: HandlerCosts, costs: Costs) -> float:
    run = workload.begun_rate * costs.handlers[workload.handler].redis_us
    return (run + workload.peak_rate * making.redis_us) * MICRO


def table_bytes(workload: Workload, costs: Costs) -> float:
    """Return the bytes of rows and indexes: pending jobs, and ended ones until they are archived or pruned."""
    ended = costs.ended_bytes + (1 + workload.retries) * costs.event_bytes
    return workload.pending * costs.pending_bytes + workload.due_per_day * workload.hot_days * ended


def entries(workload: Workload) -> float:
    """Return the entries in Redis in the busiest horizon."""
    herds = workload.herd * math.ceil(workload.horizon_seconds / 3600)
    return min(workload.pending, workload.peak_rate * workload.horizon_seconds + herds)
