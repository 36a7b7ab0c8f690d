"""A module of tasks that adds an entry to the schedule, as Celery's manual shows it."""

from typing import Any

from celery import current_app


@current_app.on_after_finalize.connect
def add_entry(sender: Any, **_: Any) -> None:
    sender.add_periodic_task(900, sender.signature("shop.report"), name="of a receiver")
