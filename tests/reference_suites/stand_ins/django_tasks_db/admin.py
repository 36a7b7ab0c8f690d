"""There is no page of task records: staff see their jobs."""

from typing import Any


class DBTaskResultAdmin:
    def __init__(self, *args: Any) -> None:
        raise NotImplementedError
