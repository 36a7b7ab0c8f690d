"""The pipeline's tables are the models' tables: neither drifts."""

from typing import Any

import pytest
from django.db import models
from pyspark.sql import types

from delaytasks.models import Job, JobEvent, TopicStat
from delaytasks.pipeline import schemas
from delaytasks.pipeline.relations import RELATIONS

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


def of_the_model(model: type[models.Model]) -> list[tuple[str, Any, bool]]:
    return [(field.column, KINDS[type(field)], field.null) for field in model._meta.concrete_fields]


@pytest.mark.parametrize(("model", "schema"), [(Job, schemas.JOBS), (JobEvent, schemas.EVENTS)])
def test_a_table_has_the_models_columns_with_their_types_in_their_order(
    model: type[models.Model], schema: types.StructType
) -> None:
    assert [(each.name, each.dataType, each.nullable) for each in schema] == of_the_model(model)


def test_the_columns_of_a_topics_hour_are_the_models() -> None:
    stored = [each for each in of_the_model(TopicStat) if each[0] != "id"]
    assert [(each.name, each.dataType, each.nullable) for each in schemas.TOPIC_STATS] == stored


@pytest.mark.parametrize(("name", "model"), [("jobs", Job), ("events", JobEvent), ("stories", JobEvent)])
def test_a_relation_names_the_models_table(name: str, model: type[models.Model]) -> None:
    assert model._meta.db_table in RELATIONS[name].origin


def test_a_column_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no column shade; there are id, topic"):
        RELATIONS["jobs"].chosen(["id", "shade"])
