"""The exception in the result of a task that was cancelled."""


class TaskCancelled(Exception):
    """The task was cancelled before it ran. Never raised: TaskResult.errors names it."""
