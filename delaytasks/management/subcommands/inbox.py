"""Subcommand inbox: take messages from a broker."""

from django.core.management.base import CommandParser

from ...inbox import consumer, declarations
from .output import Answer, Options, Verb


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the inbox in DELAYTASKS['INBOXES'] or in code")


def _run(options: Options, using: str) -> Answer:
    inbox = declarations.find(options["name"])
    with consumer.stop_on_signals() as stop:
        counts = consumer.consume(inbox, using=using, stop=stop)
    data = {name: counts[name] for name in ("stored", "repeated", "refused")}
    return Answer(data, "\n".join(f"{name:<8} {count}" for name, count in data.items()))


VERBS = {
    "inbox": Verb("Take schedule and cancel messages from Kafka or AMQP until SIGTERM.", _arguments, _run),
}
