"""The session that every run has."""

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def test_the_folder_that_spark_makes_for_tables_is_not_where_a_run_was_started(spark: Any) -> None:
    spark.sql("SHOW DATABASES").collect()  # as whatever looks up a name does
    warehouse = Path(urlsplit(spark.conf.get("spark.sql.warehouse.dir")).path)

    assert warehouse.is_dir()
    assert Path(tempfile.gettempdir()) in warehouse.parents
