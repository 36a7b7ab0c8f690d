"""Store the messages of a batch: their jobs, and a row for each message, in one transaction."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

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
    new, repeated = _select_new(using, inbox, commands, answers)
    for wave in _waves(commands, new):
        _apply(using, inbox, commands, wave, answers)
    now = databases.now(using)
    stored = sorted((commands[n] for n in new if answers[n] is None), key=lambda command: command.identity)
    InboxMessage.objects.using(using).bulk_create(
        InboxMessage(inbox=inbox, source=c.source, message_id=c.message_id, digest=c.digest, received_at=now)
        for c in stored
    )
    return answers, repeated


def _select_new(using: str, inbox: str, commands: Sequence[Command], answers: Answers) -> tuple[list[int], int]:
    """Return the positions of new messages and the number of repeated ones. Refuse repeated ids with other content."""
    ids = {command.message_id for command in commands}
    rows = InboxMessage.objects.using(using).filter(inbox=inbox, message_id__in=ids)
    known = {(source, id): digest for source, id, digest in rows.values_list("source", "message_id", "digest")}
    new: list[int] = []
    repeated = 0
    for position, command in enumerate(commands):
        digest = known.get(command.identity)
        if digest is None:
            known[command.identity] = command.digest
            new.append(position)
        elif digest == command.digest:
            repeated += 1
        else:
            answers[position] = Refused(
                "repeated-id", f"Message {command.message_id!r} was received before with another content."
            )
    return new, repeated


def _waves(commands: Sequence[Command], positions: Sequence[int]) -> Iterator[list[int]]:
    """Split messages into waves with at most one message per job, so that the order within a wave does not matter."""
    waves: list[list[int]] = []
    count: defaultdict[tuple[str, str], int] = defaultdict(int)
    for position in positions:
        pair = (commands[position].topic, commands[position].key)
        if count[pair] == len(waves):
            waves.append([])
        waves[count[pair]].append(position)
        count[pair] += 1
    yield from waves


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
