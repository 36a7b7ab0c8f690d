"""PostgreSQL's EXPLAIN output as objects that tests can check."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.test.utils import CaptureQueriesContext

_EXPLAINABLE = re.compile(r"\s*(WITH|SELECT|UPDATE|INSERT|DELETE)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Node:
    type: str  # "Seq Scan", "Index Scan", "Sort", ...
    relation: str | None
    index: str | None
    rows: int  # estimated by PostgreSQL


@dataclass(frozen=True)
class Plan:
    sql: str
    nodes: tuple[Node, ...]
    text: str

    @property
    def types(self) -> list[str]:
        return [node.type for node in self.nodes]

    @property
    def indexes(self) -> list[str]:
        return [node.index for node in self.nodes if node.index]

    def scans(self, relation: str) -> bool:
        """Return whether the plan has a sequential scan of `relation`."""
        return any(node.type in ("Seq Scan", "Parallel Seq Scan") and node.relation == relation for node in self.nodes)

    def __str__(self) -> str:
        return f"{self.sql}\n{self.text}"


def _nodes(tree: dict[str, Any]) -> Iterator[Node]:
    yield Node(tree["Node Type"], tree.get("Relation Name"), tree.get("Index Name"), tree["Plan Rows"])
    for child in tree.get("Plans", ()):
        yield from _nodes(child)


def explain(sql: str, params: Sequence[Any] | None = None, *, using: str = "default") -> Plan:
    """Return the plan of a statement, without executing it."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
        output = cursor.fetchone()[0]
        tree = (json.loads(output) if isinstance(output, str) else output)[0]["Plan"]
        cursor.execute(f"EXPLAIN {sql}", params)
        text = "\n".join(row[0] for row in cursor.fetchall())
    return Plan(sql, tuple(_nodes(tree)), text)


def plans_of(function: Callable[[], Any], *, using: str = "default") -> list[Plan]:
    """Call `function` and return the plans of all its statements. The plans are made after the call."""
    with CaptureQueriesContext(connections[using]) as captured:
        function()
    statements = [query["sql"] for query in captured.captured_queries]
    # The captured SQL contains its parameters, so a percent sign is literal.
    return [explain(sql, using=using) for sql in statements if _EXPLAINABLE.match(sql)]
