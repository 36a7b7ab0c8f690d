"""The files of deploy/, parsed."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
OBJECTS = [each for each in yaml.safe_load_all((DEPLOY / "kubernetes/shop.yaml").read_text()) if each]
DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text()
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def pods() -> dict[str, Any]:
    """Return the pod templates by the names of their objects."""
    found = {}
    for each in OBJECTS:
        spec = each.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template:
            found[each["metadata"]["name"]] = template
    return found


def container_variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a container, without those of the ConfigMap and the Secret."""
    return {each["name"]: each["value"] for each in container.get("env", ())}


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the Dockerfile: [[("RUN", "python -m venv /venv"), ...], ...]."""
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    instructions = [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]
    starts = [n for n, (name, _) in enumerate(instructions) if name == "FROM"]
    return [instructions[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]  # type: ignore[misc]


def image_command() -> list[str]:
    """Return the image's CMD."""
    [command] = [text for name, text in stages()[-1] if name == "CMD"]
    return list(yaml.safe_load(command))


def exec_start(unit: Path) -> list[str]:
    """Return the command of a unit, without the folder of its environment."""
    [line] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    return shlex.split(line.replace("/srv/shop/.venv/bin/", "").replace("%i", "8001"))


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a value of the compose file with its variables replaced: ${NAME:?} and ${NAME:-default}."""
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    if not isinstance(value, str):
        return value
    return re.sub(
        r"\$\{(\w+):(?:\?|-([^}]*))\}", lambda m: variables[m[1]] if m[2] is None else variables.get(m[1], m[2]), value
    )


def own_services(variables: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, service) of the services that run the image, with its command."""
    for name, service in interpolated(COMPOSE["services"], variables).items():
        if service.get("image") == COMPOSE["x-app"]["image"]:
            yield name, {"command": image_command()} | service
