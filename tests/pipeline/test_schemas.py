"""The pipeline's schemas equal the models' tables."""

from typing import Any

import pytest
from django.db import models
from pyspark.sql import types

from delaytasks.models import Job, JobEvent, TopicStat
from delaytasks.pipeline import schemas
from delaytasks.pipeline.sources.relations import RELATIONS

KINDS: dict[type[models.Field], types.DataType] = {
    models.BigAutoField: types.LongType(),
    models.BigIntegerField: types.LongType(),
    models.IntegerField: types.IntegerType(),
    models.SmallIntegerField: types.ShortType(),
    models.CharField: types.StringType(),
    models.TextField: types.StringType(),
    models.JSONField: types.StringType(),
    models.DateTimeField: types.TimestampType(),
    models.ForeignKey: types.LongType(),
}
CLAIM = {"grouped", "fenceable", "alone"}  # how a running job was claimed
# When and how often a live job may run. The pipeline does not read these either.
AGAIN = {"again", "again_due_at", "again_ttr_ms", "again_expires_ms", "again_body"}
UNREAD = CLAIM | AGAIN | {"expires_ms", "polls", "replaced_at", "declared_due", "producer", "trace_context", "priority"}


def of_the_model(model: type[models.Model]) -> list[tuple[str, Any, bool]]:
    return [(field.column, KINDS[type(field)], field.null) for field in model._meta.concrete_fields
            if field.column not in UNREAD]  # fmt: skip


@pytest.mark.parametrize(("model", "schema"), [(Job, schemas.JOBS), (JobEvent, schemas.EVENTS)])
def test_a_schema_has_the_models_columns_types_and_order(model: type[models.Model], schema: types.StructType) -> None:
    assert [(each.name, each.dataType, each.nullable) for each in schema] == of_the_model(model)


def test_topic_stats_has_the_models_columns() -> None:
    stored = [each for each in of_the_model(TopicStat) if each[0] != "id"]
    assert [(each.name, each.dataType, each.nullable) for each in schemas.TOPIC_STATS] == stored


@pytest.mark.parametrize(("name", "model"), [("jobs", Job), ("events", JobEvent), ("job_events", JobEvent)])
def test_a_relation_names_the_models_table(name: str, model: type[models.Model]) -> None:
    assert model._meta.db_table in RELATIONS[name].source


def test_an_unknown_column_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Unknown column shade; known are id, topic"):
        RELATIONS["jobs"].select(["id", "shade"])
