"""How the project is served: by ASGI first, by WSGI as well."""

import json
import os
import subprocess
import sys

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient, Client
from django.utils.module_loading import import_string
from psycopg import OperationalError
from psycopg_pool import ConnectionPool, PoolTimeout

from project.run import BASE
from project.settings import cache, number
from tests.servers import PostgresServer, RedisServer, stopped

STATIC = [
    "admin/css/base.css",
    "delaytasks/admin.css",
    "drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js",
]


@pytest.mark.parametrize("path", settings.MIDDLEWARE)
def test_every_middleware_runs_in_the_event_loop_so_that_no_waiting_request_holds_a_thread(path):
    assert getattr(import_string(path), "async_capable", False)


def get_by_asgi(path):
    @async_to_sync
    async def get():
        answer = await AsyncClient().get(path)
        return answer, b"".join([chunk async for chunk in answer])

    return get()


def get_by_wsgi(path):
    answer = Client().get(path)
    return answer, b"".join(answer)


@pytest.mark.parametrize("get", [get_by_asgi, get_by_wsgi])
@pytest.mark.parametrize("name", STATIC)
def test_static_files_come_from_the_apps_without_being_collected(name, get):
    answer, content = get(f"/static/{name}")

    assert answer.status_code == 200
    assert answer["Content-Type"].startswith(("text/css", "text/javascript"))
    assert int(answer["Content-Length"]) == len(content) > 1000


def settings_in_a_process(module, **env):
    """The database's settings once the web server has imported this module."""
    ask = f"import {module}; from django.conf import settings as s; import json; d = s.DATABASES['default']"
    ask += "; print(json.dumps(d, default=str))"
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ask], cwd=BASE, env=kept | env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


POSTGRES = "postgres://shop:secret@db.example/shop?sslmode=require"


def test_under_asgi_postgresql_connections_come_from_a_pool_of_the_whole_process():
    database = settings_in_a_process("project.asgi", DATABASE_URL=POSTGRES, DATABASE_POOL_SIZE="7")

    assert database["CONN_MAX_AGE"] == 0  # Django refuses to have both
    assert database["OPTIONS"]["pool"]["max_size"] == 7
    assert database["OPTIONS"]["sslmode"] == "require"


@pytest.mark.only_on("postgresql")
def test_a_web_process_is_back_as_soon_as_its_database_however_long_that_was_away():
    options = settings_in_a_process("project.asgi", DATABASE_URL=POSTGRES)["OPTIONS"]["pool"]
    with (
        PostgresServer() as server,
        ConnectionPool(f"host={server.directory} user={server.user} dbname=postgres", **options) as pool,
    ):
        pool.wait()
        with stopped(server):
            for _ in range(11):  # requests that wait for a second each
                with pytest.raises((PoolTimeout, OperationalError)), pool.connection(timeout=1) as connection:
                    connection.execute("SELECT 1")
        with pool.connection(timeout=3) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_under_asgi_no_sqlite_connection_outlives_its_request():
    assert settings_in_a_process("project.asgi")["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize("module", ["project.wsgi", "project.celery"])
def test_elsewhere_each_thread_keeps_its_connection(module):
    database = settings_in_a_process(module, DATABASE_URL=POSTGRES, DATABASE_POOL_SIZE="7")

    assert database["CONN_MAX_AGE"] == 600
    assert "pool" not in database["OPTIONS"]


@pytest.mark.parametrize("size", ["0", "-1", "many", "1.5"])
def test_a_pool_of_no_size_is_refused_by_name(size, monkeypatch):
    monkeypatch.setenv("DATABASE_POOL_SIZE", size)
    with pytest.raises(ImproperlyConfigured, match="DATABASE_POOL_SIZE="):
        number("DATABASE_POOL_SIZE", "10")


@pytest.mark.parametrize(
    ("url", "backend"),
    [
        ("", "LocMemCache"),
        ("redis://127.0.0.1:6379/3", "RedisCache"),
        ("rediss://:secret@redis.example/3", "RedisCache"),
        ("unix:///run/redis.sock?db=3", "RedisCache"),
        ("sentinel://one:26379,two:26379/shop/0", "LocMemCache"),
    ],
)
def test_requests_are_counted_in_redis_where_there_is_one(url, backend):
    assert cache(url)["BACKEND"].endswith(backend)


def test_requests_are_counted_over_the_unix_socket_that_make_run_uses():
    with RedisServer() as server:
        server.stop()
        server.options["unixsocket"] = f"{server.directory}/redis.sock"
        server.start()
        chosen = cache(f"unix://{server.directory}/redis.sock")
        counter = RedisCache(chosen["LOCATION"], {"OPTIONS": chosen["OPTIONS"], "KEY_PREFIX": chosen["KEY_PREFIX"]})

        assert counter.add("requests", 1, 60)
        assert counter.incr("requests") == 2
        counter.close()
        with server.client() as client:
            assert client.keys() == ["shop:1:requests"]
