"""The mover with a fake index: what it promotes, which topics it dispatches and how long it rests."""

from collections.abc import Sequence

import pytest

from delaytasks.exceptions import MirrorDown
from delaytasks.mirror.base import Promotion
from delaytasks.worker.mover import Mover

NOW = 1_893_456_000_000
TICK = 1_000
NOTHING = Promotion(set(), None, full=False)


class FakeIndex:
    """Returns the given promotions one after the other, then nothing."""

    def __init__(self, *promotions: Promotion | Exception, ready: set[str] | None = None) -> None:
        self.promotions = list(promotions)
        self.ready = ready or set()
        self.calls: list[tuple[int, list[str]]] = []
        self.full_checks = 0

    def promote_due(self, now_ms: int, topics: Sequence[str], *, list_ready: bool) -> Promotion:
        self.calls.append((now_ms, list(topics)))
        self.full_checks += list_ready
        promotion = self.promotions.pop(0) if self.promotions else NOTHING
        if isinstance(promotion, Exception):
            raise promotion
        return promotion._replace(topics=promotion.topics | (self.ready & set(topics) if list_ready else set()))


class World:
    """A mover, the indexes that it uses in turn (the last one stays), a clock and the dispatched topics."""

    def __init__(self, *indexes: FakeIndex, topics: Sequence[str] = ("order.close", "refund.check")) -> None:
        self.indexes = list(indexes)
        self.now_ms = NOW
        self.topics = list(topics)
        self.dispatched: list[str] = []
        self.mover = Mover(self.next_index, lambda: self.now_ms, lambda: self.topics, self.dispatched.append, TICK)

    def next_index(self) -> FakeIndex:
        return self.indexes.pop(0) if len(self.indexes) > 1 else self.indexes[0]


@pytest.mark.parametrize(
    ("promotion", "rest_ms"),
    [
        pytest.param(NOTHING, TICK, id="nothing-pending-rests-a-tick"),
        pytest.param(Promotion(set(), NOW + 250, full=False), 250, id="until-the-next-due-time"),
        pytest.param(Promotion(set(), NOW + 1, full=False), 1, id="a-millisecond"),
        pytest.param(Promotion(set(), NOW + TICK, full=False), TICK, id="due-in-a-tick"),
        pytest.param(Promotion(set(), NOW + 3_600_000, full=False), TICK, id="never-longer-than-a-tick"),
        pytest.param(Promotion(set(), NOW, full=False), 0, id="due-now"),
        pytest.param(Promotion(set(), NOW - 5, full=False), 0, id="overdue"),
        pytest.param(Promotion(set(), 0, full=False), 0, id="due-since-1970"),
        pytest.param(Promotion(set(), NOW + 250, full=True), 0, id="full-batch-goes-on-at-once"),
        pytest.param(Promotion(set(), None, full=True), 0, id="full-batch-that-was-the-last"),
    ],
)
def test_a_pass_returns_how_long_to_rest(promotion: Promotion, rest_ms: int) -> None:
    assert World(FakeIndex(promotion)).mover.move_due() == rest_ms


def test_the_rest_is_counted_from_the_end_of_the_pass() -> None:
    index = FakeIndex(Promotion({"order.close"}, NOW + 250, full=False))
    world = World(index)

    def slow_dispatch(topic: str) -> None:
        world.now_ms += 100

    mover = Mover(lambda: index, lambda: world.now_ms, lambda: ["order.close"], slow_dispatch, TICK)
    assert mover.move_due() == 150


def test_a_pass_uses_the_databases_time_and_the_topics_known_now() -> None:
    index = FakeIndex()
    world = World(index)
    world.mover.move_due()
    world.topics.append("seat.free")
    world.now_ms += 5
    world.mover.move_due()
    assert index.calls == [
        (NOW, ["order.close", "refund.check"]),
        (NOW + 5, ["order.close", "refund.check", "seat.free"]),
    ]


def test_each_topic_that_got_ready_jobs_is_dispatched_once() -> None:
    world = World(FakeIndex(Promotion({"refund.check", "order.close"}, None, full=False), ready={"order.close"}))
    world.mover.move_due()
    assert world.dispatched == ["order.close", "refund.check"]


def test_no_topic_is_dispatched_when_no_job_is_ready() -> None:
    world = World(FakeIndex())
    world.mover.move_due()
    assert world.dispatched == []


def test_a_lost_message_is_sent_again_within_a_tick() -> None:
    index = FakeIndex(ready={"order.close"})
    world = World(index)
    for _ in range(21):
        world.mover.move_due()
        world.now_ms += 100
    assert (world.dispatched, index.full_checks) == (["order.close"] * 3, 3), (
        "at 0, 1000 and 2000 ms, and not at each pass"
    )


def test_each_full_batch_is_dispatched_so_that_workers_begin_before_the_backlog_is_moved() -> None:
    full = Promotion({"order.close"}, NOW, full=True)
    world = World(FakeIndex(full, full))
    assert [world.mover.move_due() for _ in range(3)] == [0, 0, TICK]
    assert world.dispatched == ["order.close"] * 2


def test_a_mirror_that_fails_during_a_pass_is_replaced_by_the_database() -> None:
    mirror = FakeIndex(MirrorDown())
    database = FakeIndex(Promotion({"order.close"}, NOW + 40, full=False))
    world = World(mirror, database)
    assert world.mover.move_due() == 40
    assert world.dispatched == ["order.close"]
    assert len(mirror.calls) == len(database.calls) == 1


def test_a_failed_check_of_all_ready_jobs_is_repeated_at_once() -> None:
    mirror, database = FakeIndex(MirrorDown()), FakeIndex(ready={"order.close"})
    world = World(mirror, database)
    world.mover.move_due()
    assert (world.dispatched, database.full_checks) == (["order.close"], 1)


def test_a_mirror_that_fails_during_a_dispatch_is_replaced_too() -> None:
    indexes = [
        FakeIndex(Promotion({"order.close"}, None, full=False)),
        FakeIndex(Promotion({"order.close"}, None, full=False)),
    ]
    failures = iter([MirrorDown(), None])
    dispatched = []

    def dispatch(topic: str) -> None:
        failure = next(failures)
        if failure:
            raise failure
        dispatched.append(topic)

    assert Mover(lambda: indexes.pop(0), lambda: NOW, lambda: ["order.close"], dispatch, TICK).move_due() == TICK
    assert dispatched == ["order.close"]


def test_a_second_failure_in_a_pass_is_raised() -> None:
    world = World(FakeIndex(MirrorDown(), MirrorDown()))
    with pytest.raises(MirrorDown):
        world.mover.move_due()
    assert world.mover.move_due() == TICK, "the next pass is not affected"


def test_a_topic_that_cannot_be_dispatched_does_not_block_the_others() -> None:
    dispatched = []

    def dispatch(topic: str) -> None:
        if topic == "order.close":
            raise RuntimeError("no such queue")
        dispatched.append(topic)

    index = FakeIndex(Promotion({"order.close", "refund.check"}, None, full=False))
    mover = Mover(lambda: index, lambda: NOW, lambda: ["order.close", "refund.check"], dispatch, TICK)
    try:
        mover.move_due()
    except RuntimeError:
        pass  # the pass may raise or not
    assert dispatched == ["refund.check"]


def test_a_clock_that_was_set_back_stops_neither_passes_nor_checks() -> None:
    index = FakeIndex(ready={"order.close"})
    world = World(index)
    world.mover.move_due()
    world.now_ms -= 3_600_000
    rests = []
    for _ in range(3):
        rests.append(world.mover.move_due())
        world.now_ms += TICK
    assert rests == [TICK] * 3
    assert index.full_checks > 1, "an hour without a check for lost messages is too long"
