"""Tasks of the tests. Their decorator needs a backend, so a test imports this module by the fixture `tasks`."""

import asyncio
from typing import Any

from delaytasks.django_tasks.compat import TaskContext
from delaytasks.models import Topic

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

seen: list[Any] = []  # what tasks leave behind for a test


@task
def add(a: int, b: int = 0) -> int:
    seen.append((a, b))
    return a + b


@task()
async def add_later(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    await Topic.objects.acount()
    return a + b


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task
def fail_with_character(number: int) -> None:
    raise ValueError(chr(number))


@task
def leave(error: str) -> None:
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[error](error)


@task
def answer_something_else() -> object:
    seen.append("ran")
    return lambda: True


@task(takes_context=True)
def tell_attempt(context: TaskContext, fail_until: int = 0) -> list[Any]:
    if context.attempt <= fail_until:
        raise ValueError(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.id, str(context.task_result.status)]


@task
def write(name: str) -> None:
    Topic.objects.create(name=name)
    raise ValueError("after the effect")


not_a_task = len
