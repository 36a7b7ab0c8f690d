"""The planted faults of `make pipeline-demo`: an audit names each and no other, wherever it runs."""

import contextlib
import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from delaytasks.models import Job
from delaytasks.pipeline.applications import audit
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.rules import rules
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import Outcome, State
from project.demo import __main__ as demo
from project.demo import faults
from project.shop.models import Customer, Order

from ...support.spark_cluster import cluster
from ..conftest import SMALL, happened
from .test_cluster import LOOPBACK

pytestmark = [pytest.mark.tools, pytest.mark.only_on("postgresql")]
ORDERS, SEED = 40, 7
CONF = SMALL | {name: value for name, value in LOOPBACK.items() if "eventLog" not in name}


def on_cluster(url: str, folder: Path, capfd: Any, *words: str) -> dict[str, Any]:
    """Run a command on the cluster. Return its answer; an audit that finds faults ends with their exit code."""
    options = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    capfd.readouterr()
    faulty = pytest.raises(CommandError) if words[0] == "audit" else contextlib.nullcontext()
    with faulty as raised:
        call_command("delaytasks", "pipeline", *words, "--lake", str(folder), "--master", url, "--json", *options)
    assert raised is None or raised.value.returncode == ExitCode.FAULTS
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def fill(job: Callable[..., Job]) -> None:
    """Orders that were closed on time in the last 20 days, each by its job."""
    now, customer = timezone.now().replace(microsecond=0), Customer.objects.create(name="Ann")
    for number in range(1, ORDERS + 1):
        pay_by = now - timedelta(hours=12 * number)
        (order,) = Order.objects.bulk_create([Order(
            customer=customer, state=Order.State.CLOSED, total=number, pay_by=pay_by, created_at=pay_by,
            closed_at=pay_by + timedelta(seconds=1),
        )])  # fmt: skip
        row = job(order.key, faults.TOPIC, State.FINISHED, due_at=pay_by, attempt=1)
        happened(row, Outcome.FINISHED, row.ended_at, late_ms=5)


def test_planted_faults_are_found_before_and_after_archiving_locally_and_on_a_cluster(
    spark: Any, database: Database, job: Callable[..., Job], tmp_path: Path, capfd: Any
) -> None:
    fill(job)
    planted = faults.plant(random.Random(SEED), demo.ARCHIVED_DAYS)
    lake, path = Lake(str(tmp_path / "default")), str(demo.RULE)
    found = {}

    with cluster() as url:
        for when in ("before", "after"):
            found[when, "locally"] = audit.run(spark, database, lake, file=path, rules=rules.read(path))
            found[when, "on the cluster"] = on_cluster(url, tmp_path, capfd, "audit", "--rule", path)
            if when == "before":
                days = str(demo.ARCHIVED_DAYS)
                archived = on_cluster(url, tmp_path, capfd, "archive", "--older-than-days", days)

    assert archived["pruned"] > ORDERS / 3
    assert Job.objects.count() > ORDERS / 3
    expected = {(fault.audit_class, fault.key) for fault in planted}
    assert len(expected) == 2 * len(faults.KINDS)
    assert {where: set(demo.violations(answer)) for where, answer in found.items()} == dict.fromkeys(found, expected)
