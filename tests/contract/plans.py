"""What PostgreSQL plans to do with a statement: EXPLAIN, read into something a test can assert on."""

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
    rows: int  # estimated


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
        """Whether it reads the whole of `relation`, row by row."""
        return any(node.type in ("Seq Scan", "Parallel Seq Scan") and node.relation == relation for node in self.nodes)

    def __str__(self) -> str:
        return f"{self.sql}\n{self.text}"


def _nodes(tree: dict[str, Any]) -> Iterator[Node]:
    yield Node(tree["Node Type"], tree.get("Relation Name"), tree.get("Index Name"), tree["Plan Rows"])
    for child in tree.get("Plans", ()):
        yield from _nodes(child)


def explain(sql: str, params: Sequence[Any] | None = None, *, using: str = "default") -> Plan:
    """The plan of a statement, which is not executed."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
        found = cursor.fetchone()[0]
        tree = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        cursor.execute(f"EXPLAIN {sql}", params)
        text = "\n".join(row[0] for row in cursor.fetchall())
    return Plan(sql, tuple(_nodes(tree)), text)


def plans_of(function: Callable[[], Any], *, using: str = "default") -> list[Plan]:
    """The plans of all that `function()` really sent to the database, as the tables are after it."""
    with CaptureQueriesContext(connections[using]) as captured:
        function()
    sent = [query["sql"] for query in captured.captured_queries]
    # The captured text has its parameters filled in: a percent sign in it is a percent sign.
    return [explain(sql, using=using) for sql in sent if _EXPLAINABLE.match(sql)]
