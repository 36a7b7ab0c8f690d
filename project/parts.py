"""What `make run` consists of: each program, its command, and how one sees that it is up."""

import socket
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .supervise import Part

WEB_STOP_SECONDS = 3  # for requests that are on their way when the web server is told to stop

# What is asked here is on this machine: a proxy that the environment may name is not for it.
_local = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def keeper(base: Path, lock: Path) -> Part:
    return Part("keeper", [sys.executable, str(base / "project" / "keeper.py"), str(lock)], priority=1, stop_seconds=2)


def redis(server: Path, var: Path, path: Path) -> Part:
    """The embedded Redis, on a unix socket: no port, nothing but this user's processes."""
    settings = var / "run" / "redis.conf"
    settings.write_text(
        f"""\
# Written by `make run` at each start.
port 0
unixsocket "{path}"
unixsocketperm 700
dir "{var / "redis"}"
daemonize no
appendonly yes
appendfsync everysec
save ""
# The mirror and Celery's queues are no cache: nothing may be thrown out.
maxmemory-policy noeviction
"""
    )
    return Part("redis", [str(server), str(settings)], priority=10, is_up=lambda: answers_ping(path), stop_seconds=20)


def gateway(port: int) -> Part:
    command = [sys.executable, "-m", "project.shop.gateway", str(port)]
    return Part("gateway", command, priority=20, is_up=lambda: answers_http(port, "/health"))


def web(port: int) -> Part:
    """The web server. What it does may not depend on which other wheels happen to be installed: hence loop and http."""
    command = [sys.executable, "-m", "uvicorn", "--host=127.0.0.1", f"--port={port}", "--loop=asyncio", "--http=h11"]
    # A poll may wait for a minute; whoever stops the server does not. A consumer asks again by itself.
    command += ["--timeout-keep-alive=75", f"--timeout-graceful-shutdown={WEB_STOP_SECONDS}"]
    command += ["--lifespan=off", "--no-access-log", "--no-server-header", "project.asgi:application"]
    is_up = partial(answers_http, port, "/api/health/")
    return Part("web", command, priority=30, is_up=is_up, stop_seconds=WEB_STOP_SECONDS + 5)


def worker() -> Part:
    # TERM goes to the main process alone: it lets its children finish what they hold.
    command = celery("worker", "--pool=prefork", "--concurrency=2", "--hostname=shop@%h", "--loglevel=info")
    return Part("worker", command, priority=40, is_up=worker_answers, stop_seconds=60)


def beat(var: Path) -> Part:
    # An empty pidfile is none: one that a killed beat left behind would keep the next from starting.
    command = celery("beat", f"--schedule={var / 'run' / 'beat-schedule'}", "--pidfile=", "--loglevel=info")
    return Part("beat", command, priority=50)


def celery(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--app=project", *arguments]


def answers_ping(path: Path) -> bool:
    """Whether the Redis on this socket is there and has loaded its data."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def answers_http(port: int, path: str) -> bool:
    try:
        with _local.open(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def worker_answers() -> bool:
    from .celery import app

    try:
        return bool(app.control.ping(timeout=0.3))
    except OSError:
        return False


def all_parts(
    *, base: Path, var: Path, sockets: Path, web_port: int, gateway_port: int, redis_server: Callable[[], Path] | None
) -> list[Part]:
    """Every part, in the order of starting. redis_server: finds the program; None where another Redis is used."""
    parts = [keeper(base, var / "run" / "lock")]
    if redis_server:
        parts.append(redis(redis_server(), var, sockets / "redis.sock"))
    return [*parts, gateway(gateway_port), web(web_port), worker(), beat(var)]
