"""A site during an upgrade: the steps of each release and the expected state of each job."""

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.http_client import Api
from tests.support.servers import wait_until

from .http_traffic import Traffic
from .releases import Release

BY_ONE = {"parcel.by-old": "old", "parcel.by-new": "new"}  # topics whose messages only one release's worker consumes
LOAD_TOPICS = ("parcel.note", "parcel.share", "parcel.batch", "parcel.snooze", "parcel.retry", *BY_ONE)
LOAD = 140  # jobs that each release schedules while both run
CHANGES = ("cancel", "reschedule", "run_now", "replace")
LATER_SECONDS = 1_800  # within the mirror's horizon, but after the end of the test
DAY_SECONDS = 86_400
RUN_SECONDS = 40
ADMIN = "/admin/delaytasks"

Items = list[dict[str, Any]]
Name = tuple[str, str]  # topic and key


def items(topic: str, prefix: str, count: int, *, delay: float, spread: float = 0.0) -> Items:
    """Return jobs whose due times are spread evenly over `spread` seconds."""
    return [{"topic": topic, "key": f"{prefix}-{n}", "delay": delay + spread * n / count} for n in range(count)]


def keys_of(jobs: Items) -> list[str]:
    return [job["key"] for job in jobs]


class Site:
    """A site with two releases that share a database, a Redis, a broker and a cache."""

    def __init__(self, old: Release, new: Release, directory: Path) -> None:
        self.old, self.new = old, new
        self.both_ways = ((old, new), (new, old))
        self.pipe = directory / "held"
        self.secret = ""
        self.consumed: set[Name] = set()  # finished over HTTP, without a handler
        self.expected: dict[str, set[Name]] = {state: set() for state in ("finished", "cancelled", "delayed", "dead")}

    def expect(self, state: str, jobs: Items) -> list[str]:
        """Remember the final state expected of these jobs; return their keys."""
        self.expected[state].update((job["topic"], job["key"]) for job in jobs)
        return keys_of(jobs)

    def schedule(self, release: Release, state: str, jobs: Items) -> list[str]:
        release.call("schedule", jobs)
        return self.expect(state, jobs)

    # The old release alone

    def run_the_old_release(self) -> None:
        """Leave jobs in every state, a half-done bulk change and a running handler."""
        self.old.manage("migrate", "--run-syncdb", "--verbosity=0")
        self.old.start_worker()
        self.old.start_beat()
        self.old.start_web()
        self.leave_a_bulk_change_half_done()
        self.leave_jobs_pending()
        grants = ("--produce", "letter.*", "--produce", "parcel.*", "--consume", "letter.*")
        self.secret = self.old.command("token", "make", "--account", "post", *grants)["secret"]
        self.old.await_ready()
        self.schedule(self.old, "finished", items("parcel.note", "first", 10, delay=0))
        self.schedule(self.old, "dead", items("parcel.refuse", "refused", 2, delay=0))
        self.hold_a_job()
        self.end_letters("before", self.old)
        self.view_the_board(self.old)
        # Some are due before the new release runs, the others while it runs.
        self.schedule(self.old, "finished", items("parcel.snooze", "spread", 60, delay=0, spread=10))

    def leave_jobs_pending(self) -> None:
        self.schedule(self.old, "delayed", items("parcel.note", "later", 3, delay=LATER_SECONDS))
        assert self.old.call("mirrored") >= 3
        self.schedule(self.old, "delayed", items("parcel.note", "beyond-the-horizon", 3, delay=2 * DAY_SECONDS))
        cancelled = self.schedule(self.old, "cancelled", items("parcel.note", "cancelled", 3, delay=LATER_SECONDS))
        assert self.old.call("cancel", "parcel.note", cancelled) == ["cancelled"] * 3

    def leave_a_bulk_change_half_done(self) -> None:
        """Leave its next message in a queue that only the new worker consumes."""
        self.schedule(self.old, "cancelled", items("parcel.note", "bulk-old", 600, delay=LATER_SECONDS))
        self.old.call("cancel_all", "bulk-old")
        self.old.call("do_half_of_the_bulk_change")
        (change,) = self.old.call("bulk_changes")
        assert (change["position"], change["total"], change["state"]) == (500, 600, "running")

    def hold_a_job(self) -> None:
        """Start a handler in the old worker that blocks until its named pipe is opened."""
        os.mkfifo(self.pipe)
        self.schedule(self.old, "finished", [{"topic": "parcel.wait", "key": self.pipe.name, "delay": 0}])
        self.old.until("state", "parcel.wait", self.pipe.name, is_="reserved", seconds=RUN_SECONDS)

    # Both releases

    def migrate_and_start_the_new_release(self) -> None:
        """Migrate and start while the old worker runs a job."""
        self.new.manage("migrate", "--verbosity=0")
        self.new.start_worker()
        self.new.start_beat()
        self.new.start_web()
        self.new.call("check")
        self.new.await_ready()

    def finish_the_old_workers_job(self) -> None:
        assert self.new.call("state", "parcel.wait", self.pipe.name) == "reserved"
        wait_until(self.opened, seconds=RUN_SECONDS, what="the handler to open its pipe")
        self.new.until("state", "parcel.wait", self.pipe.name, is_="finished", seconds=RUN_SECONDS)
        (effect,) = (effect for effect in self.new.call("effects") if effect["topic"] == "parcel.wait")
        assert (effect["release"], effect["attempt"]) == ("old", 1)

    def opened(self) -> bool:
        """Return whether a handler waits at the pipe, and let it continue."""
        try:
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        return True

    def consume_each_others_messages(self) -> None:
        """Each release's worker runs the tasks that the other's callers, beat and bulk changes sent."""
        self.schedule(self.new, "cancelled", items("parcel.note", "bulk-new", 600, delay=LATER_SECONDS))
        self.new.call("cancel_all", "bulk-new")
        for sender, consumer in self.both_ways:
            for name, message in sender.call("send_messages").items():
                consumer.await_line("worker", f"Task {name}[{message}] succeeded")
            sender.await_line("beat", "Sending due task delaytasks.sweep")
            consumer.await_line("worker", "Task delaytasks.bulk_change[")
        self.new.until("bulk_states", is_=[["done", 600, 600]] * 2, seconds=RUN_SECONDS)

    def change_each_others_jobs(self) -> None:
        """Change jobs under load; each release schedules half of the load."""
        for by, other in self.both_ways:
            for topic in LOAD_TOPICS:
                load = items(topic, f"load-{by.name}", LOAD // len(LOAD_TOPICS), delay=0, spread=5)
                self.schedule(by, "finished", load)
            self.change(by, other)
        for by, other in self.both_ways:
            self.race(by, other)
        self.retry_a_dead_job()

    def change(self, by: Release, other: Release) -> None:
        """Schedule jobs with one release; cancel, reschedule, run and replace them with the other."""
        jobs = {verb: items("parcel.note", f"{verb}-{by.name}", 10, delay=LATER_SECONDS) for verb in CHANGES}
        by.call("schedule", [job for each in jobs.values() for job in each])
        cancelled = self.expect("cancelled", jobs["cancel"])
        assert other.call("cancel", "parcel.note", cancelled) == ["cancelled"] * len(cancelled)
        other.call("reschedule", "parcel.note", self.expect("finished", jobs["reschedule"]), 1.0)
        other.call("run_now", "parcel.note", self.expect("finished", jobs["run_now"]))
        replaced = [job | {"delay": 0.5} for job in jobs["replace"]]
        assert other.call("schedule", replaced, on_conflict="replace") == [0, 0, len(replaced)]
        self.expect("finished", replaced)

    def race(self, by: Release, other: Release) -> None:
        """Cancel jobs at their due time: each answer has to be true."""
        jobs = items("parcel.note", f"race-{by.name}", 40, delay=0, spread=0.4)
        by.call("schedule", jobs)
        answers = other.call("cancel", "parcel.note", keys_of(jobs))
        assert set(answers) <= {"cancelled", "running", "already finished"}
        for job, answer in zip(jobs, answers, strict=True):
            self.expect("cancelled" if answer == "cancelled" else "finished", [job])

    def retry_a_dead_job(self) -> None:
        """Retry a dead job of the old release with the new one."""
        name = ("parcel.refuse", "refused-0")
        self.new.until("state", *name, is_="dead", seconds=RUN_SECONDS)
        self.new.call("retry_dead", *name)
        self.expected["dead"].remove(name)
        self.expected["finished"].add(name)

    def serve_http_side_by_side(self) -> None:
        """Both web processes serve producers and consumers at the same time, and the workers of both run the jobs."""
        traffic = Traffic({release.name: Api(release.port, self.secret) for release in (self.old, self.new)})
        traffic.run()
        traffic.assert_each_was_reserved_once_and_both_consumers_got_some()
        self.consumed = traffic.names("consumed")
        self.expected["finished"] |= self.consumed | traffic.names("handled")
        self.expected["cancelled"] |= traffic.names("cancelled")

    def end_letters(self, topic: str, *by: Release) -> None:
        """Bury a job over HTTP, and let another exceed its TTR; the engine stores both errors."""
        for release in by:
            fields = {"topic": f"letter.{topic}", "delay": 0}
            buried, overrun = f"{release.name}-buried", f"{release.name}-overrun"
            self.schedule(release, "dead", [fields | {"key": buried, "ttr": 600}, fields | {"key": overrun, "ttr": 1}])
            job = self.reserve(release, fields["topic"], {buried, overrun})[buried]
            release.call("api", self.secret, f"jobs/{job['id']}/bury/", {"attempt": job["attempt"]})
            release.until("sweep_until_dead", fields["topic"], overrun, is_=True, seconds=RUN_SECONDS)

    def reserve(self, release: Release, topic: str, keys: set[str]) -> dict[str, Any]:
        held: dict[str, Any] = {}

        def all_held() -> bool:
            reserved = release.call("api", self.secret, f"topics/{topic}/reserve/", {"count": 2})["jobs"]
            held.update((job["key"], job) for job in reserved)
            return set(held) == keys

        wait_until(all_held, seconds=RUN_SECONDS, what=f"{keys} of {topic} to be reserved")
        return held

    def view_the_board(self, release: Release) -> None:
        for page in ("board/", "board/numbers/", "topic/"):
            release.call("page", f"{ADMIN}/{page}")

    def read_each_others_caches(self) -> None:
        """Neither release may read a pickle that the other wrote."""
        for release in (self.new, self.old):
            self.view_the_board(release)
            assert release.call("unreadable_keys") == [], (
                f"The {release.name} release read a value that the other release had pickled: "
                "raise FORMAT in monitoring/cache.py."
            )

    def await_the_load(self) -> None:
        self.new.until("live", is_=0, seconds=RUN_SECONDS)

    # The new release alone

    def stop_the_old_release(self) -> None:
        """Stop it while it runs jobs. The new beat takes over the old one's schedule file, as in a real upgrade."""
        self.schedule(self.old, "finished", items("parcel.note", "last", 60, delay=0, spread=2))
        self.old.stop()
        self.schedule(self.new, "finished", items("parcel.retry", "last", 40, delay=0, spread=1))
        self.new.start_beat("beat-again", schedule=self.old.schedule)
        self.new.await_line("beat-again", "Sending due task delaytasks.sweep")
        self.await_the_load()

    # The old release again

    def roll_back(self) -> None:
        """The old release takes over on the migrated tables, and runs what the new one has scheduled."""
        self.new.stop()
        keys = self.schedule(self.new, "finished", items("parcel.note", "rolled-back", 20, delay=1, spread=1))
        postponed = self.schedule(self.new, "delayed", items("parcel.note", "later-again", 3, delay=LATER_SECONDS))
        self.old.start_worker("worker-again")
        self.old.until("live", is_=0, seconds=RUN_SECONDS)
        assert {effect["release"] for effect in self.old.call("effects") if effect["key"] in keys} == {"old"}
        assert self.old.call("cancel", "parcel.note", postponed[:1]) == ["cancelled"]
        self.expected["delayed"].remove(("parcel.note", postponed[0]))
        self.expected["cancelled"].add(("parcel.note", postponed[0]))

    def assert_each_job_ended_once_and_none_started_early(self) -> None:
        actual: dict[str, set[Name]] = {state: set() for state in self.expected}
        jobs = self.new.call("jobs")
        for job in jobs:
            actual[job["state"]].add((job["topic"], job["key"]))
        assert actual == self.expected
        assert len(jobs) == sum(map(len, actual.values()))
        assert {job["attempt"] for job in jobs if (job["topic"], job["key"]) in self.consumed} == {1}
        effects = self.new.call("effects")
        assert {(effect["topic"], effect["key"]) for effect in effects} == self.expected["finished"] - self.consumed
        assert not [job_id for job_id, number in Counter(e["job_id"] for e in effects).items() if number > 1]
        ran = {(effect["topic"], effect["release"]) for effect in effects}
        assert {pair for pair in ran if pair[0] in BY_ONE} == set(BY_ONE.items())
        assert self.new.call("begun_early") == []

    def assert_commands_and_pages_show_the_jobs(self) -> None:
        assert self.new.command("audit", "--check")["mirror"] == "up"
        assert self.new.command("stats")["mirror"] == "up"
        shown = {job["id"] for job in self.new.command("list", "--state", "dead")["jobs"]}
        assert shown == {job["id"] for job in self.new.call("jobs") if job["state"] == "dead"}
        for job in self.new.call("one_of_each"):
            assert self.new.command("show", str(job["id"]))["state"] == job["state"]
            assert job["key"] in self.new.call("command", "show", str(job["id"]))
            assert job["key"] in self.new.call("page", f"{ADMIN}/job/{job['id']}/change/")
        for change in self.new.call("bulk_changes"):
            assert "600" in self.new.call("page", f"{ADMIN}/bulkchange/{change['id']}/change/")

    def assert_equal_outcomes_have_the_same_text(self) -> None:
        """Equal for rows stored before the migration, by the old release after it, and by the new one."""
        for outcome in ("buried", "overrun"):
            letters = [job for job in self.new.call("jobs") if job["key"].endswith(f"-{outcome}")]
            assert len(letters) == 4
            errors = {self.new.command("show", str(job["id"]))["error"] for job in letters}
            assert len(errors) == 1, f"Letters that were {outcome}: {errors}"
