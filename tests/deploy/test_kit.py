"""The files of deploy/ are hardened and agree with each other and with the settings; their commands exist."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from delaytasks import conf

from . import running
from .kit import COMPOSE, DEPLOY, DOCKERFILE, OBJECTS, ROOT, UNITS, container_variables, exec_start, own_services, pods
from .running import Kit

OURS = ("migrate", "timeouts", "schedules", "web", "worker", "beat")


def commands() -> list[list[str]]:
    """Return each command of the kit that runs the project."""
    found = [COMPOSE["services"][name]["command"] for name in OURS if "command" in COMPOSE["services"][name]]
    found += [yaml.safe_load(line.removeprefix("CMD ")) for line in DOCKERFILE.splitlines() if line.startswith("CMD ")]
    found += [container["command"] for pod in pods().values()
              for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
              if "command" in container]  # fmt: skip
    return [*found, *map(exec_start, UNITS)]


def as_help(command: list[str]) -> list[str]:
    """Return the command with --help after its options, run by this Python: the options are parsed first."""
    words = command[2:] if command[:2] == ["python", "-m"] else command
    module = [str(ROOT / words[1])] if words[0] == "python" else ["-m", words[0]]
    rest = words[2:] if words[0] == "python" else words[1:]
    return [sys.executable, *module, *rest, "--help"]


DISTINCT = sorted({tuple(as_help(command)) for command in commands()})


@pytest.mark.parametrize("command", DISTINCT, ids=lambda command: " ".join(command[1:4]))
def test_each_command_exists_and_knows_its_options(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert "No such option" not in done.stderr
    assert "unrecognized arguments" not in done.stderr


def test_compose_and_kubernetes_run_the_same_commands() -> None:
    workers = [COMPOSE["services"]["worker"]["command"], pods()["shop-worker"]["spec"]["containers"][0]["command"]]
    beats = [COMPOSE["services"]["beat"]["command"], pods()["shop-beat"]["spec"]["containers"][0]["command"]]
    assert workers[0] == workers[1]
    assert beats[0] == beats[1]


@pytest.mark.parametrize("make", [running.compose, running.kubernetes], ids=lambda make: make.__name__)
def test_the_kits_run_the_commands_that_a_deployment_needs_in_the_order_of_the_guide(make: Callable[[], Kit]) -> None:
    guide = (ROOT / "docs/howto/deploy.md").read_text()
    needed = re.findall(r"^python manage\.py (migrate|delaytasks .*)$", guide, re.MULTILINE)
    found = [" ".join(command[2:]) for command in make().once.values()]
    assert [text[: len(command)] for text, command in zip(found, needed, strict=True)] == needed


@pytest.mark.parametrize("name", OURS)
def test_containers_are_read_only_and_without_privileges(name: str) -> None:
    service = COMPOSE["services"][name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", pods())
def test_pods_are_read_only_not_root_and_without_privileges(name: str) -> None:
    spec = pods()[name]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
        }  # fmt: skip


def test_the_image_runs_as_a_user_without_rights_and_has_two_stages() -> None:
    assert DOCKERFILE.count("\nFROM ") == 2
    assert re.search(r"^USER 10001$", DOCKERFILE.split("\nFROM ")[-1], re.MULTILINE)


def test_each_copied_file_exists() -> None:
    copied = [
        line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    assert all((ROOT / path).exists() for paths in copied for path in paths)


def test_each_variable_is_one_of_the_project_s_settings() -> None:
    documented = (ROOT / "project/settings.py").read_text().split('"""')[1]
    config = next(each for each in OBJECTS if each["kind"] == "ConfigMap")
    own = [container_variables(pod["spec"]["containers"][0]) for pod in pods().values()]
    names = {*COMPOSE["x-app"]["environment"], *config["data"]}.union(*own)
    assert {name for name in names if name not in documented} == set()


LOGIN = """
import django
django.setup()
from django.test import Client
headers = {"host": "shop.example", "x-forwarded-proto": "https", "origin": "https://shop.example"}
client = Client(enforce_csrf_checks=True, headers=headers)
client.get("/admin/login/")
token = client.cookies["csrftoken"]
answer = client.post("/admin/login/", {"username": "anna", "csrfmiddlewaretoken": token.value})
print(answer.status_code, bool(token["secure"]))
"""


def test_pods_behind_an_ingress_with_tls_accept_a_login(tmp_path: Path) -> None:
    """Without a password, so that the form is refused and no database is needed."""
    config = next(each for each in OBJECTS if each["kind"] == "ConfigMap")["data"]
    settings = {"SECRET_KEY": "x", "DJANGO_SETTINGS_MODULE": "project.settings", "VAR_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOGIN], cwd=ROOT, env=os.environ | config | settings, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "200 True\n", done.stderr[-500:]


def test_pods_know_the_address_of_a_caller_from_the_ingress() -> None:
    config = next(each for each in OBJECTS if each["kind"] == "ConfigMap")["data"]
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    server: Any = ProxyHeadersMiddleware(application, config.get("FORWARDED_ALLOW_IPS", "127.0.0.1"))
    for sender in ("10.244.1.7", "203.0.113.9"):
        scope = {"type": "http", "client": (sender, 1), "headers": [(b"x-forwarded-for", b"198.51.100.4")]}
        asyncio.run(server(scope, None, None))
    assert seen == ["198.51.100.4", "203.0.113.9"]


def test_only_the_pods_that_no_ingress_reaches_serve_metrics() -> None:
    """Metrics need no login and name topics. nginx hides those of the web processes of the other kits."""
    config = next(each for each in OBJECTS if each["kind"] == "ConfigMap")["data"]
    assert "METRICS_PORT" not in config
    with_port = {name: container_variables(pod["spec"]["containers"][0]) for name, pod in pods().items()}
    assert {name: each for name, each in with_port.items() if each} == {"shop-worker": {"METRICS_PORT": "9808"}}
    worker = pods()["shop-worker"]
    assert worker["metadata"]["annotations"]["prometheus.io/port"] == "9808"
    assert worker["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9808}]


@pytest.mark.parametrize("variables", [{}, {"SHOP_HOST": "shop.example"}], ids=["local", "with a name"])
def test_the_web_process_answers_its_health_check_and_prometheus_whatever_its_name_is(
    variables: dict[str, str],
) -> None:
    secrets = dict.fromkeys(("POSTGRES_PASSWORD", "REDIS_PASSWORD", "SECRET_KEY"), "x")
    web = dict(own_services(secrets | variables))["web"]
    [checked] = re.findall(r"http://([\w.]+):8000/", " ".join(web["healthcheck"]["test"]))
    scrapes = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {target.split(":")[0] for each in scrapes[0]["static_configs"] for target in each["targets"]}
    asked = {checked, *targets, *variables.values()}
    assert {"127.0.0.1", "web"} <= asked <= set(web["environment"]["ALLOWED_HOSTS"].split(","))


def test_prometheus_scrapes_each_worker_that_compose_runs() -> None:
    [scrape] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    [workers] = scrape["dns_sd_configs"]
    [name] = workers["names"]
    assert (workers["type"], str(workers["port"])) == ("A", COMPOSE["services"][name]["environment"]["METRICS_PORT"])
    assert "ports" not in COMPOSE["services"][name], "only one container can have a port of the host"


def test_budgets_and_the_autoscaler_select_deployments_that_exist() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods().values() if "metadata" in pod]
    budgets = [each for each in OBJECTS if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == 2
    assert all(budget["spec"]["selector"]["matchLabels"] in labels for budget in budgets)
    scaler = next(each for each in OBJECTS if each["kind"] == "HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]["name"]
    assert target in pods()
    [deployment] = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == ("Deployment", target)]
    assert "replicas" not in deployment["spec"], "`kubectl apply` would undo what the autoscaler has decided"


def test_the_probes_of_web_processes_have_addresses_that_answer(client: Any, db: None) -> None:
    [container] = pods()["shop-web"]["spec"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert client.get(container[probe]["httpGet"]["path"]).status_code == 200


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_hardened(unit: Path) -> None:
    text = unit.read_text()
    for line in (
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "CapabilityBoundingSet=",
        "UMask=0077",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line


@pytest.mark.parametrize(
    "unit", [each for each in UNITS if "Restart=always" in each.read_text()], ids=lambda path: path.name
)
def test_systemd_does_not_give_up_a_unit_that_fails_at_each_start(unit: Path) -> None:
    assert re.search("^StartLimitIntervalSec=0$", unit.read_text().split("[Service]")[0], re.MULTILINE)


def test_the_proxy_limits_what_a_stranger_may_send_and_hold() -> None:
    text = (DEPLOY / "nginx/shop.conf").read_text()
    limits = dict(re.findall(r"^    (client_\w+|limit_conn) ([^;]+);", text, re.MULTILINE))
    mib = int(limits["client_max_body_size"].removesuffix("m"))
    assert conf.Settings().api_max_request_bytes < mib * 2**20 < 2 * conf.Settings().api_max_request_bytes
    assert all(int(limits[name].removesuffix("s")) <= 15 for name in ("client_header_timeout", "client_body_timeout"))
    assert re.fullmatch(r"callers \d+", limits["limit_conn"])
    assert "limit_conn_zone $binary_remote_addr zone=callers:" in text, "of one address"


def test_the_proxys_configuration_in_the_document_is_a_part_of_the_kits() -> None:
    document = (ROOT / "docs/howto/deploy.md").read_text()
    documented = document.split("```nginx\n")[1].split("```")[0]
    kit = _directives((DEPLOY / "nginx/shop.conf").read_text())
    assert "location = /metrics {" in documented
    assert not [each for each in _directives(documented) if each not in kit]


def _directives(text: str) -> list[str]:
    return [" ".join(line.split("#")[0].split()) for line in text.splitlines() if line.split("#")[0].strip()]


def test_a_warm_shutdown_has_time_everywhere() -> None:
    seconds = [
        int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")),
        pods()["shop-worker"]["spec"]["terminationGracePeriodSeconds"],
        int(re.search(r"TimeoutStopSec=(\d+)", (DEPLOY / "systemd/shop-worker.service").read_text())[1]),  # type: ignore[index]
    ]
    assert min(seconds) > 60, "the default TTR"
