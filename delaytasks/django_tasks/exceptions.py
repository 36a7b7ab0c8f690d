"""The exceptions in the results of tasks that were cancelled, or whose worker was lost."""


class TaskCancelled(Exception):
    """The task was cancelled before it ran. Never raised: TaskResult.errors names it."""


class WorkerLost(Exception):
    """The worker ended while it ran the task, or could not record its end. Never raised, like TaskCancelled."""
