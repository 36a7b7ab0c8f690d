"""Airflow: each night archive, then report and audit. A task is retried if its exit code says that this can help.

Each task is a process of `manage.py`, so Airflow's own environment needs neither Django nor Spark. It inherits the
variables of the Airflow worker, which must have those of the project, such as DATABASE_URL and SECRET_KEY.
"""

import datetime
import subprocess

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.sdk import dag, task

PYTHON, PROJECT, LAKE = "/srv/shop/.venv/bin/python", "/srv/shop", "/var/lib/shop/lake"
FINAL = {1: "found faults in the data", 2: "was given bad input"}  # another run would end in the same way: no retry


@task(retries=3, retry_delay=datetime.timedelta(minutes=10))
def pipeline(*words: str) -> str:
    """Run `manage.py delaytasks pipeline` with these arguments and return its answer as JSON text."""
    command = [PYTHON, "manage.py", "delaytasks", "pipeline", *words, "--lake", LAKE, "--json"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode in FINAL:
        raise AirflowFailException(f"{words[0]} {FINAL[done.returncode]}: {done.stderr}")
    if done.returncode:
        raise AirflowException(f"{words[0]} could not run: {done.stderr}")
    return done.stdout


@dag(
    schedule="15 2 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    max_active_runs=1,
)
def delaytasks_pipeline() -> None:
    archived = pipeline.override(task_id="archive")("archive")
    reported = pipeline.override(task_id="report")("report")
    audited = pipeline.override(task_id="audit")("audit", "--rule", "project/shop/audit.toml")
    archived >> reported >> audited


delaytasks_pipeline()
