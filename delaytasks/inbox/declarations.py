"""The inboxes of this site: those in DELAYTASKS["INBOXES"], and those declared in code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from .. import conf, validators
from ..exceptions import BadInput, short_repr
from ..forwarding import brokers

MAX_BATCH = 1000


@dataclass(frozen=True)
class Inbox:
    """A Kafka topic or an AMQP queue from which messages are taken.

    name          str, the argument of the command: `manage.py delaytasks inbox NAME`
    topics        list of str: the topics of delaytasks in which its messages may schedule and cancel jobs
    dead_letter   str, the Kafka topic or the AMQP queue to which refused messages are sent; it must exist
    kafka         str, the name of the Kafka topic. Give either `kafka` or `amqp`
    amqp          str, the name of the AMQP queue
    broker        name of the broker in DELAYTASKS["BROKERS"]; default: "kafka" or "amqp"
    group         str, the Kafka consumer group; default: "delaytasks.NAME"
    past_seconds  a message is refused if it was due more than this many seconds before it was sent; default: 86,400
    batch_max     int, the largest number of messages that are stored in one transaction, 1 to 1,000

    Raises BadInput for a bad option.
    """

    name: str
    topics: Sequence[str] = ()
    dead_letter: str = ""
    kafka: str = ""
    amqp: str = ""
    broker: str = ""
    group: str = ""
    past_seconds: float = 86_400
    batch_max: int = 200

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable() or len(self.name) > 100:
            raise BadInput(f"The name of an inbox is {short_repr(self.name)}; give 1 to 100 printable characters.")
        if bool(self.kafka) == bool(self.amqp):
            raise self._bad('give either "kafka", the name of a Kafka topic, or "amqp", the name of a queue, not both.')
        self._check_names()
        self._check_topics()
        self._check_numbers()

    @property
    def protocol(self) -> str:
        return "kafka" if self.kafka else "amqp"

    def broker_options(self) -> dict[str, Any]:
        """Return the options of the broker. Raises BadInput."""
        name = self.broker or self.protocol
        try:
            options = brokers.options(name, f"Inbox {self.name!r}")
        except ValueError as error:
            raise BadInput(str(error)) from None
        if self.kafka and "bootstrap.servers" not in options:
            raise self._bad(f'BROKERS[{name!r}] needs {{"bootstrap.servers": "host:port,..."}}.')
        if self.amqp and not str(options.get("url")).startswith(("amqp://", "amqps://")):
            raise self._bad(f"BROKERS[{name!r}] needs a URL that begins with amqp:// or amqps://.")
        return options

    def check_libraries(self) -> None:
        """Raise BadInput if a library that the inbox needs is not installed."""
        for module in ("confluent_kafka", "cloudevents") if self.kafka else ("cloudevents",):  # kombu comes with Celery
            if find_spec(module) is None:
                raise self._bad(f"{module} is not installed: pip install 'delaytasks[{self.protocol}]'.")

    def _check_names(self) -> None:
        given = {"kafka": self.kafka, "amqp": self.amqp, "dead_letter": self.dead_letter, "group": self.group}
        given["broker"] = self.broker
        for what, name in given.items():
            if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > 255:
                raise self._bad(f"{what!r} is {short_repr(name)}; give a printable text of at most 255 bytes.")
        if not self.dead_letter or self.dead_letter == (self.kafka or self.amqp):
            raise self._bad('"dead_letter" must name another topic or queue: refused messages are sent to it.')
        if self.group and self.amqp:
            raise self._bad('"group" is for Kafka only.')

    def _check_topics(self) -> None:
        if not isinstance(self.topics, list | tuple) or not self.topics:
            raise self._bad(f'"topics" is {short_repr(self.topics)}; give a list of the topics that messages may use.')
        for topic in self.topics:
            try:
                validators.check_topic(topic)
            except BadInput as error:
                raise self._bad(f'"topics": {error}') from None

    def _check_numbers(self) -> None:
        past, batch = self.past_seconds, self.batch_max
        if isinstance(past, bool) or not isinstance(past, int | float) or not past >= 0:
            raise self._bad(f'"past_seconds" is {short_repr(past)}; give seconds, 0 or more.')
        if isinstance(batch, bool) or not isinstance(batch, int) or not 0 < batch <= MAX_BATCH:
            raise self._bad(f'"batch_max" is {short_repr(batch)}; give a number from 1 to {MAX_BATCH:,}.')

    def _bad(self, problem: str) -> BadInput:
        return BadInput(f"Inbox {self.name!r}: {problem}")


_declared: dict[str, Inbox] = {}
OPTIONS = [field.name for field in fields(Inbox)][1:]


def declare(
    name: str,
    *,
    topics: Sequence[str],
    dead_letter: str,
    kafka: str = "",
    amqp: str = "",
    broker: str = "",
    group: str = "",
    past_seconds: float = Inbox.past_seconds,
    batch_max: int = Inbox.batch_max,
) -> Inbox:
    """Declare an inbox in code, for example in timeouts.py of an app.

    name          the argument of the command: `manage.py delaytasks inbox NAME`
    topics        the topics of delaytasks in which its messages may schedule and cancel jobs
    dead_letter   the Kafka topic or the AMQP queue to which refused messages are sent; it must exist
    kafka         the name of the Kafka topic. Give either `kafka` or `amqp`
    amqp          the name of the AMQP queue
    broker        name of the broker in DELAYTASKS["BROKERS"]; default: "kafka" or "amqp"
    group         the Kafka consumer group; default: "delaytasks.NAME"
    past_seconds  a message is refused if it was due more than this many seconds before it was sent; default: 86,400
    batch_max     the largest number of messages that are stored in one transaction, 1 to 1,000

    Returns the Inbox. It overrides an inbox of the same name in DELAYTASKS["INBOXES"], and an earlier declaration.

    Raises BadInput for a bad option.
    """
    inbox = Inbox(
        name, topics, dead_letter, kafka, amqp, broker, group,
        past_seconds, batch_max,
    )  # fmt: skip
    _declared[name] = inbox
    return inbox


def unregister(name: str) -> None:
    """Unregister an inbox that was declared in code. For tests."""
    _declared.pop(name, None)


def names() -> list[str]:
    return sorted(conf.get().inboxes.keys() | _declared.keys(), key=str)  # a wrong name may be no string


def find(name: str) -> Inbox:
    """Return the inbox of this name. Raises BadInput if there is none, or its options are wrong."""
    if name in _declared:
        return _declared[name]
    options = conf.get().inboxes.get(name)
    if options is None:
        known = ", ".join(names()) or "none"
        raise BadInput(f"There is no inbox {name!r}; DELAYTASKS['INBOXES'] and the code declare: {known}.")
    return _from_options(name, options)


def _from_options(name: str, options: object) -> Inbox:
    if not isinstance(options, Mapping):
        raise BadInput(f"Inbox {name!r} is {short_repr(options)}; it must be a dict.")
    for option in options:
        if option not in OPTIONS:
            raise BadInput(f"Inbox {name!r} has an unknown option {option!r}. Known: {', '.join(OPTIONS)}.")
    return Inbox(name, **options)
