"""A real Prometheus for a game day, which evaluates the shortened alert rules."""

import json
import shutil
import urllib.request
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tests.support.servers import Server, ServerMissing, free_port, tail

from . import rules

SCRAPE, EVALUATE = "2s", "1s"  # a scrape may not take longer than its interval: 1 s is too short on a busy machine
LOOKBACK = f"{300 // rules.FACTOR}s"
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Alert(NamedTuple):
    """An alert that is pending or firing; `since` is the time at which its condition became true."""

    name: str
    labels: dict[str, str]
    firing: bool
    since: datetime


class PrometheusServer(Server):
    """Scrapes these targets every two seconds and evaluates the shortened rules."""

    name = "prometheus"

    def __init__(self, targets: Sequence[str]) -> None:
        super().__init__()
        self.port = free_port()
        self._write("alerts.json", rules.shorten(rules.load()))
        times = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": EVALUATE}
        job = {"job_name": "delaytasks", "static_configs": [{"targets": list(targets)}]}
        self._write("prometheus.json", {"global": times, "rule_files": ["alerts.json"], "scrape_configs": [job]})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self.directory / name).write_text(json.dumps(document))  # JSON is YAML

    def start(self) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            raise ServerMissing("prometheus was not found: install Debian's package prometheus.")
        self.spawn(
            [
                binary,
                f"--config.file={self.directory}/prometheus.json",
                f"--storage.tsdb.path={self.directory}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
                f"--query.lookback-delta={LOOKBACK}",
            ],
            cwd=self.directory,
        )
        if not self.await_answer():
            raise ServerMissing(f"{binary} does not start. Its log ends:\n{tail(self.log)}")

    def answers(self) -> bool:
        try:
            return bool(self._get("/-/ready"))
        except OSError:
            return False

    def alerts(self) -> list[Alert]:
        """Return the alerts that are pending or firing now."""
        return [
            Alert(
                found["labels"]["alertname"],
                found["labels"],
                found["state"] == "firing",
                datetime.fromisoformat(found["activeAt"]),
            )
            for found in json.loads(self._get("/api/v1/alerts"))["data"]["alerts"]
        ]

    def firing(self, name: str, topic: str = "") -> list[Alert]:
        """Return the firing alerts of this name; with a topic, those of that topic."""
        found = [alert for alert in self.alerts() if alert.firing and alert.name == name]
        return [alert for alert in found if not topic or alert.labels.get("topic") == topic]

    def has_values(self, metric: str) -> bool:
        return bool(json.loads(self._get(f"/api/v1/query?query={metric}"))["data"]["result"])

    def _get(self, path: str) -> bytes:
        with _opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
            body: bytes = response.read()
            return body


def is_installed() -> bool:
    return shutil.which("prometheus") is not None
