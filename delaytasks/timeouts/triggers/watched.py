"""The tables that declarations depend on: those of their models and of forward relations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import DecimalField
from django.db.models.constants import LOOKUP_SEP

from ..declarations import Declaration, declarations
from ..desired_jobs import rows
from ..sync import aliases_of
from .statements import WatchedTable


@dataclass(frozen=True)
class Dependent:
    """A declaration whose jobs depend on the rows of a table.

    path   the lookup from the declaration's model to the table's model, such as "customer"; "": it is the same model
    pk     the primary key field of the model of that table
    """

    declaration: Declaration
    path: str
    pk: Any

    @property
    def name(self) -> str:
        """Topic and path, equal in all processes: "shop.order.close_unpaid customer"."""
        return f"{self.declaration.topic} {self.path}"

    def page(self, keys: Sequence[Any] | None, after: Any, limit: int, using: str) -> list[Any]:
        """Return primary keys of the declaration's model, in order, for rows that refer to rows of the table.

        keys    primary keys of the table; None: return all rows of the declaration's model
        after   the primary key to continue after; None: from the beginning
        """
        found = rows(self.declaration, using)
        if keys is not None:
            found = found.filter(**{LOOKUP_SEP.join(filter(None, [self.path, "pk", "in"])): keys})
        if after is not None:
            found = found.filter(pk__gt=after)
        return list(found.order_by("pk").values_list("pk", flat=True)[:limit])


@dataclass(frozen=True)
class Watched:
    """A watched table, and the declarations that depend on it, sorted by name."""

    table: WatchedTable
    dependents: tuple[Dependent, ...]

    @property
    def topics(self) -> set[str]:
        return {each.declaration.topic for each in self.dependents}

    def to_python(self, row_pk: str) -> Any:
        """Return the primary key of a mark, as Django reads it from the table. Raises ValidationError."""
        field = self.dependents[0].pk
        while field.is_relation:
            field = field.target_field
        value = field.to_python(row_pk)
        if isinstance(field, DecimalField) and value is not None:  # SQLite drops trailing zeros
            value = value.quantize(Decimal(1).scaleb(-field.decimal_places))
        return value


def watched(using: str) -> dict[str, Watched]:
    """Return the watched tables of a database, by name."""
    columns: dict[str, set[str]] = {}
    keys: dict[str, str] = {}
    dependents: dict[str, dict[str, Dependent]] = {}
    for declaration in declarations():
        for model, field, path in _fields(declaration) if using in aliases_of(declaration) else ():
            name, pk = model._meta.db_table, model._meta.pk
            keys[name] = pk.column
            columns.setdefault(name, set()).add(field.column)
            dependent = Dependent(declaration, path, pk)
            dependents.setdefault(name, {})[dependent.name] = dependent
    return {
        name: Watched(
            WatchedTable(name, keys[name], tuple(sorted(columns[name] - {keys[name]}))),
            tuple(found[each] for each in sorted(found)),
        )
        for name, found in sorted(dependents.items())
    }


def _fields(declaration: Declaration) -> Iterator[tuple[Any, Any, str]]:
    """Yield (model, its own field, path to the model) for each field that jobs of the declaration depend on."""
    yield declaration.concrete, declaration.pk, ""
    for lookup in sorted(declaration.paths):
        model: Any = declaration.concrete
        path = ""
        for part in lookup.split(LOOKUP_SEP):
            field = model._meta.pk if part == "pk" else model._meta.get_field(part)
            while field.model._meta.concrete_model is not model:  # the field of a model that this one inherits from
                link = model._meta.get_ancestor_link(field.model)
                yield model, link, path
                model, path = link.related_model._meta.concrete_model, _join(path, link.name)
            yield model, field, path
            if field.is_relation:
                model, path = field.related_model._meta.concrete_model, _join(path, field.name)


def _join(path: str, name: str) -> str:
    return f"{path}{LOOKUP_SEP}{name}" if path else name
