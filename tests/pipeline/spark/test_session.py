"""The session of every run."""

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def test_sparks_warehouse_folder_is_not_in_the_working_directory(spark: Any) -> None:
    spark.sql("SHOW DATABASES").collect()  # as whatever looks up a name does
    warehouse = Path(urlsplit(spark.conf.get("spark.sql.warehouse.dir")).path)

    assert warehouse.is_dir()
    assert Path(tempfile.gettempdir()) in warehouse.parents
