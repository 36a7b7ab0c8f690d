"""The programs that `make run` starts: their commands and health checks."""

import socket
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .supervisor import Program

WEB_STOP_SECONDS = 3  # for requests in progress when the web server stops

# Requests go to this machine: ignore proxies from the environment.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def reaper(lock: Path) -> Program:
    script = Path(__file__).with_name("reaper.py")
    return Program("reaper", [sys.executable, str(script), str(lock)], priority=1, stop_seconds=2)


def redis(server: Path, var: Path, path: Path) -> Program:
    """Return the embedded Redis. It listens on a unix socket that only this user can open, and on no port."""
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
# The mirror and Celery's queues are not a cache: never evict a key.
maxmemory-policy noeviction
"""
    )
    return Program(
        "redis", [str(server), str(settings)], priority=10, is_up=lambda: answers_ping(path), stop_seconds=20
    )


def gateway(port: int) -> Program:
    command = [sys.executable, "-m", "project.shop.gateway", str(port)]
    return Program("gateway", command, priority=20, is_up=lambda: answers_http(port, "/health"))


def web(port: int, *, http: str = "h11") -> Program:
    """Return the web server. It uses uvloop where it is installed.

    http   uvicorn's parser: h11 is strict and limits the size of headers. httptools ("auto" uses it where it is
           installed) is faster, for a server behind a proxy that does this
    """
    command = [sys.executable, "-m", "uvicorn", "--host=127.0.0.1", f"--port={port}", "--loop=auto", f"--http={http}"]
    # A long poll may wait for a minute. When the server stops, it ends the poll early, and the consumer retries.
    command += ["--timeout-keep-alive=75", f"--timeout-graceful-shutdown={WEB_STOP_SECONDS}"]
    command += ["--lifespan=off", "--no-access-log", "--no-server-header", "project.asgi:application"]
    is_up = partial(answers_http, port, "/api/health/")
    return Program("web", command, priority=30, is_up=is_up, stop_seconds=WEB_STOP_SECONDS + 5)


def worker() -> Program:
    # SIGTERM goes to the main process only, which lets its children finish their tasks.
    command = celery("worker", "--pool=prefork", "--concurrency=2", "--hostname=shop@%h", "--loglevel=info")
    return Program("worker", command, priority=40, is_up=worker_answers, stop_seconds=60)


def beat(var: Path) -> Program:
    # No pidfile: a stale one from a killed beat would prevent the next start.
    command = celery("beat", f"--schedule={var / 'run' / 'beat-schedule'}", "--pidfile=", "--loglevel=info")
    return Program("beat", command, priority=50)


def celery(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--app=project", *arguments]


def answers_ping(path: Path) -> bool:
    """Return whether the Redis on this socket is running and has loaded its data."""
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
        with _opener.open(f"http://127.0.0.1:{port}{path}", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def worker_answers() -> bool:
    from ..celery import app

    try:
        return bool(app.control.ping(timeout=0.3))
    except OSError:
        return False


def all_programs(
    *, var: Path, sockets: Path, web_port: int, gateway_port: int, find_redis_server: Callable[[], Path] | None
) -> list[Program]:
    """Return all programs in start order.

    find_redis_server   returns the path of redis-server; None if REDIS_URL names another Redis
    """
    programs = [reaper(var / "run" / "lock")]
    if find_redis_server:
        programs.append(redis(find_redis_server(), var, sockets / "redis.sock"))
    return [*programs, gateway(gateway_port), web(web_port), worker(), beat(var)]
