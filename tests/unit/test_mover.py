"""The mover with fakes: what it asks, whom it rings for, and how long it rests."""

from collections.abc import Sequence

import pytest

from delaytasks.exceptions import MirrorDown
from delaytasks.mover import Mover
from delaytasks.places import Promotion

NOW = 1_893_456_000_000
TICK = 1_000
NOTHING = Promotion(set(), None, full=False)


class Place:
    """Answers with the promotions that it was given, then with nothing."""

    def __init__(self, *promotions: Promotion | Exception, ready: set[str] | None = None) -> None:
        self.promotions = list(promotions)
        self.ready = ready or set()
        self.asked: list[tuple[int, list[str]]] = []
        self.looked = 0

    def promote_due(self, now_ms: int, topics: Sequence[str], *, look: bool) -> Promotion:
        self.asked.append((now_ms, list(topics)))
        self.looked += look
        answer = self.promotions.pop(0) if self.promotions else NOTHING
        if isinstance(answer, Exception):
            raise answer
        return answer._replace(topics=answer.topics | (self.ready & set(topics) if look else set()))


class World:
    """A mover, the places it finds one after the other (the last one stays), a clock and the bells that rang."""

    def __init__(self, *places: Place, topics: Sequence[str] = ("order.close", "refund.check")) -> None:
        self.places = list(places)
        self.now_ms = NOW
        self.topics = list(topics)
        self.rang: list[str] = []
        self.mover = Mover(self.next_place, lambda: self.now_ms, lambda: self.topics, self.rang.append, TICK)

    def next_place(self) -> Place:
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]


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
def test_a_pass_says_how_long_to_rest(promotion: Promotion, rest_ms: int) -> None:
    assert World(Place(promotion)).mover.move_due() == rest_ms


def test_the_rest_is_counted_from_the_end_of_the_pass() -> None:
    place = Place(Promotion({"order.close"}, NOW + 250, full=False))
    world = World(place)

    def slow_bell(topic: str) -> None:
        world.now_ms += 100

    mover = Mover(lambda: place, lambda: world.now_ms, lambda: ["order.close"], slow_bell, TICK)
    assert mover.move_due() == 150


def test_a_pass_asks_with_the_databases_time_and_the_topics_known_now() -> None:
    place = Place()
    world = World(place)
    world.mover.move_due()
    world.topics.append("seat.free")
    world.now_ms += 5
    world.mover.move_due()
    assert place.asked == [
        (NOW, ["order.close", "refund.check"]),
        (NOW + 5, ["order.close", "refund.check", "seat.free"]),
    ]


def test_each_topic_that_got_ready_jobs_is_rung_for_once() -> None:
    world = World(Place(Promotion({"refund.check", "order.close"}, None, full=False), ready={"order.close"}))
    world.mover.move_due()
    assert world.rang == ["order.close", "refund.check"]


def test_nobody_is_rung_for_when_nothing_is_ready() -> None:
    world = World(Place())
    world.mover.move_due()
    assert world.rang == []


def test_a_lost_bell_is_rung_again_within_a_tick() -> None:
    place = Place(ready={"order.close"})
    world = World(place)
    for _ in range(21):
        world.mover.move_due()
        world.now_ms += 100
    assert (world.rang, place.looked) == (["order.close"] * 3, 3), "at 0, 1000 and 2000 ms, and not at each pass"


def test_full_batches_ring_each_time_so_that_workers_begin_before_the_backlog_is_moved() -> None:
    full = Promotion({"order.close"}, NOW, full=True)
    world = World(Place(full, full))
    assert [world.mover.move_due() for _ in range(3)] == [0, 0, TICK]
    assert world.rang == ["order.close"] * 2


def test_a_mirror_that_fails_in_the_middle_of_a_pass_is_replaced_by_what_works() -> None:
    mirror = Place(MirrorDown())
    database = Place(Promotion({"order.close"}, NOW + 40, full=False))
    world = World(mirror, database)
    assert world.mover.move_due() == 40
    assert world.rang == ["order.close"]
    assert len(mirror.asked) == len(database.asked) == 1


def test_a_look_that_failed_is_made_again_at_once() -> None:
    mirror, database = Place(MirrorDown()), Place(ready={"order.close"})
    world = World(mirror, database)
    world.mover.move_due()
    assert (world.rang, database.looked) == (["order.close"], 1)


def test_a_mirror_that_fails_while_a_bell_is_rung_is_replaced_too() -> None:
    places = [Place(Promotion({"order.close"}, None, full=False)), Place(Promotion({"order.close"}, None, full=False))]
    moods = iter([MirrorDown(), None])
    rang = []

    def ring(topic: str) -> None:
        failure = next(moods)
        if failure:
            raise failure
        rang.append(topic)

    assert Mover(lambda: places.pop(0), lambda: NOW, lambda: ["order.close"], ring, TICK).move_due() == TICK
    assert rang == ["order.close"]


def test_what_fails_twice_is_for_the_caller() -> None:
    world = World(Place(MirrorDown(), MirrorDown()))
    with pytest.raises(MirrorDown):
        world.mover.move_due()
    assert world.mover.move_due() == TICK, "the next pass is not the worse for it"


def test_a_topic_that_cannot_be_rung_for_keeps_no_other_waiting() -> None:
    rang = []

    def ring(topic: str) -> None:
        if topic == "order.close":
            raise RuntimeError("no such queue")
        rang.append(topic)

    place = Place(Promotion({"order.close", "refund.check"}, None, full=False))
    mover = Mover(lambda: place, lambda: NOW, lambda: ["order.close", "refund.check"], ring, TICK)
    try:
        mover.move_due()
    except RuntimeError:
        pass  # whether the pass reports it by raising is its own affair
    assert rang == ["refund.check"]


def test_a_clock_that_was_set_back_stops_neither_the_passes_nor_the_looks() -> None:
    place = Place(ready={"order.close"})
    world = World(place)
    world.mover.move_due()
    world.now_ms -= 3_600_000
    rests = []
    for _ in range(3):
        rests.append(world.mover.move_due())
        world.now_ms += TICK
    assert rests == [TICK] * 3
    assert place.looked > 1, "an hour without a look for lost bells is too long"
