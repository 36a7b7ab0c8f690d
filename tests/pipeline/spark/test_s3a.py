"""Archive, report and audit of a lake on S3, through Hadoop's S3A jars, on a server on loopback.

The jars come from a package on PyPI. They are of Hadoop 3.3, which is older than Spark's, so its settings are given
without units and with a provider of credentials that it knows.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet

from delaytasks.models import Job
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.tables import archived_history, hours
from delaytasks.pipeline.tables.delta import Table
from delaytasks.pipeline.tables.lake import Lake

from ...support import s3_server
from ..conftest import SMALL

PACKAGE, JARS = "sagemaker_pyspark==1.4.5", ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")
FOLDER = Path(sys.prefix) / "s3a-jars"  # 190 MB, kept there
OLDER = {  # the settings of Hadoop 3.5 that Hadoop 3.3 cannot read
    "threads.keepalivetime": "60", "connection.establish.timeout": "5000", "connection.timeout": "200000",
    "connection.request.timeout": "0", "multipart.purge.age": "86400",
    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider", "path.style.access": "true",
}  # fmt: skip
RULE = """[[rule]]
topic = "order.close"
parquet = "s3://lake/orders.parquet"
columns = { id = "bigint", due = "timestamp" }
key = "concat('order:', id)"
since = "due"
"""


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The jars, from the package's source distribution, which is not installed."""
    found = [FOLDER / name for name in JARS]
    if not all(each.exists() for each in found):
        folder = tmp_path_factory.mktemp("s3a")
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                        "--no-build-isolation", "--dest", str(folder), PACKAGE], check=True)  # fmt: skip
        FOLDER.mkdir(exist_ok=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as package:
            for member in package.getmembers():
                if Path(member.name).name in JARS:
                    member.name = Path(member.name).name
                    package.extract(member, FOLDER)
    return found


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server.server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{s3_server.BUCKET}/lake"


def write_orders(rows: list[Job]) -> None:
    """Write the orders of these jobs, and one without a job."""
    orders = [{"id": n, "due": row.due_at} for n, row in enumerate([*rows, rows[-1]], 1)]
    kinds = pyarrow.schema([("id", pyarrow.int64()), ("due", pyarrow.timestamp("us", "UTC"))])
    root = Lake(f"s3://{s3_server.BUCKET}")
    table = pyarrow.Table.from_pylist(orders, schema=kinds)
    parquet.write_table(table, root.path("orders.parquet"), filesystem=root.files)


@pytest.mark.tools
@pytest.mark.only_on("postgresql")
def test_a_lake_on_s3_is_archived_to_reported_and_audited(
    lake: str, jars: list[Path], ended: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    conf = SMALL | {"spark.jars": ",".join(map(str, jars))} | {f"spark.hadoop.fs.s3a.{k}": v for k, v in OLDER.items()}
    options = ["--lake", lake, "--json", *(word for each in conf.items() for word in ("--conf", "=".join(each)))]
    rows = [ended(f"order:{n}", days=40 if n < 3 else 3) for n in range(1, 5)]
    write_orders(rows)
    (tmp_path / "audit.toml").write_text(RULE)

    def answer(*words: str) -> Any:
        capfd.readouterr()
        call_command("delaytasks", "pipeline", *words, *options)
        return json.loads(capfd.readouterr().out)

    archived = answer("archive")
    assert (archived["jobs"], archived["events"], archived["pruned"], Job.objects.count()) == (2, 4, 2, 2)
    answer("report")
    capfd.readouterr()
    with pytest.raises(CommandError, match="1 missing") as raised:
        call_command("delaytasks", "pipeline", "audit", "--rule", str(tmp_path / "audit.toml"), *options)
    assert raised.value.returncode == ExitCode.FAULTS
    audited = json.loads(capfd.readouterr().out)
    classes = audited["rules"][0]["classes"]
    assert {name: each["count"] for name, each in classes.items() if each["count"]} == {"kept": 4, "missing": 1}
    assert audited["page"].startswith(f"{lake}/default/audit/")

    found = Lake(f"{lake}/default")
    archived = archived_history.by_key(found, "order.close", "order:1")
    assert archived is not None
    assert (archived.job["id"], len(archived.events)) == (rows[0].pk, 2)
    assert sum(each.rows for each in Table(found, hours.NAME, hours.MONTH).files) == 2
    files = [path for ending in (".json", ".html", ".parquet") for path, _ in found.list_files("", ending)]
    assert len(files) > 10
    assert not [path for path in files if s3_server.SECRET.encode() in read(found, path)]


def read(lake: Lake, path: str) -> bytes:
    with lake.files.open_input_stream(lake.path(path)) as stream:
        return bytes(stream.read())
