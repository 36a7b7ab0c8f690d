from collections.abc import Callable

passes: list[Callable[[str], None]] = []  # called with the alias in each guard: work of rooms above this one
