from collections.abc import Callable

# Work of higher layers: the guard calls each function with the database alias each time it runs.
passes: list[Callable[[str], None]] = []
