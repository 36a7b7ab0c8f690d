"""Store the messages of a batch: their jobs, and a row for each message, in one transaction."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from django.db import IntegrityError, OperationalError, transaction

from .. import databases
from ..db import dialects
from ..db.retries import in_transaction
from ..exceptions import DelaytasksError, KeyIsLive, UnknownTopic
from ..jobs.control import cancel
from ..jobs.inputs import check_known
from ..jobs.schedule import schedule_many
from ..models import InboxMessage
from .messages import Command, Refused

RACES = 3  # attempts to store a batch: another consumer may store the same message at the same time
LOCK_MS = 2000  # the longest wait for a lock of another transaction
Answers = list[Refused | None]


def store(using: str, inbox: str, commands: Sequence[Command]) -> tuple[Answers, int]:
    """Schedule and cancel jobs as the messages request, in order for each key.

    A message that was stored before is skipped. The batch is written in one transaction. A refused message writes
    nothing.

    Returns a list with a Refused or None for each message, and the number of repeated messages. Raises errors of the
    database; nothing is written then.
    """

    for _ in range(RACES - 1):
        try:
            return in_transaction(using, lambda: _store(using, inbox, commands))
        except IntegrityError:
            continue
    return in_transaction(using, lambda: _store(using, inbox, commands))


def _store(using: str, inbox: str, commands: Sequence[Command]) -> tuple[Answers, int]:
    dialects.wait_at_most(using, LOCK_MS)
    answers: Answers = [None] * len(commands)
    digests, stored = _stored_digests(using, inbox, commands), list[Command]()
    for wave in _waves(commands):
        new = _select_new(commands, wave, digests, answers)
        _apply(using, inbox, commands, new, answers)
        accepted = [commands[n] for n in new if answers[n] is None]
        digests.update((command.identity, command.digest) for command in accepted)
        stored += accepted
    now = databases.now(using)
    InboxMessage.objects.using(using).bulk_create(
        InboxMessage(inbox=inbox, source=c.source, message_id=c.message_id, digest=c.digest, received_at=now)
        for c in sorted(stored, key=lambda command: command.identity)
    )
    return answers, answers.count(None) - len(stored)


def _stored_digests(using: str, inbox: str, commands: Sequence[Command]) -> dict[tuple[str, str], str]:
    """Return {identity: digest} of the messages that were stored before."""
    ids = {command.message_id for command in commands}
    rows = InboxMessage.objects.using(using).filter(inbox=inbox, message_id__in=ids)
    return {(source, id): digest for source, id, digest in rows.values_list("source", "message_id", "digest")}


def _waves(commands: Sequence[Command]) -> list[list[int]]:
    """Split messages into waves with at most one message per job and per id. Within a wave, order does not matter.

    Two messages with the same id are in different waves, because the second is new if the first is refused.
    """
    waves: list[list[int]] = []
    following: defaultdict[tuple[str, ...], int] = defaultdict(int)  # by job and by id: the wave after its latest one
    for position, command in enumerate(commands):
        job, identity = ("job", command.topic, command.key), ("id", *command.identity)
        number = max(following[job], following[identity])
        if number == len(waves):
            waves.append([])
        waves[number].append(position)
        following[job] = following[identity] = number + 1
    return waves


def _select_new(
    commands: Sequence[Command], wave: Sequence[int], digests: Mapping[tuple[str, str], str], answers: Answers
) -> list[int]:
    """Return the positions of new messages. Refuse repeated ids with other content."""
    for position in wave:
        command = commands[position]
        if digests.get(command.identity, command.digest) != command.digest:
            answers[position] = Refused(
                "repeated-id", f"Message {command.message_id!r} was received before with another content."
            )
    return [n for n in wave if commands[n].identity not in digests]


def _apply(using: str, inbox: str, commands: Sequence[Command], wave: Sequence[int], answers: Answers) -> None:
    by_mode: defaultdict[str, list[int]] = defaultdict(list)
    for position in wave:
        by_mode[commands[position].on_conflict].append(position)
    for mode, positions in sorted(by_mode.items()):
        if mode:
            _schedule(using, inbox, commands, positions, answers)
        else:
            _cancel(using, inbox, commands, positions, answers)


def _schedule(using: str, inbox: str, commands: Sequence[Command], positions: Sequence[int], answers: Answers) -> None:
    """Schedule the jobs together. If one is refused, schedule each by itself to find it."""
    mode = commands[positions[0]].on_conflict
    by = f"inbox {inbox}" if mode in ("replace", "again") else ""  # the others change no job that exists
    items = [{"topic": commands[n].topic, "key": commands[n].key, **commands[n].terms} for n in positions]
    try:
        with transaction.atomic(using):
            schedule_many(items, on_conflict=mode, using=using, by=by)
    except DelaytasksError as error:
        if isinstance(error, KeyIsLive) and error.may_pass:
            raise OperationalError(str(error)) from error  # no message is to blame
        if len(positions) == 1:
            answers[positions[0]] = _refusal(error)
            return
        for position in positions:
            _schedule(using, inbox, commands, [position], answers)


def _cancel(using: str, inbox: str, commands: Sequence[Command], positions: Sequence[int], answers: Answers) -> None:
    for position in positions:
        command = commands[position]
        try:
            check_known(using, command.topic)
            cancel(command.topic, command.key, using=using, by=f"inbox {inbox}")
        except DelaytasksError as error:
            answers[position] = _refusal(error)


def _refusal(error: DelaytasksError) -> Refused:
    code = "unknown-topic" if isinstance(error, UnknownTopic) else "conflict"
    return Refused(code, f"{type(error).__name__}: {str(error).removeprefix('Item 0: ')}")
