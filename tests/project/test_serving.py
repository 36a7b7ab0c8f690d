"""Serving the project with ASGI and WSGI: static files, database connections, cache."""

import json
import os
import subprocess
import sys

import pytest
from asgiref.sync import async_to_sync
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient, Client
from django.utils.module_loading import import_string
from psycopg import OperationalError
from psycopg_pool import ConnectionPool, PoolTimeout

from project.run.__main__ import BASE
from project.settings import MIDDLEWARE, cache, positive_int
from tests.support.servers import PostgresServer, RedisServer, stopped

STATIC = [
    "admin/css/base.css",
    "delaytasks/admin.css",
    "drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js",
]


@pytest.mark.parametrize("path", MIDDLEWARE)
def test_every_middleware_is_async_capable_so_that_no_waiting_request_holds_a_thread(path):
    assert getattr(import_string(path), "async_capable", False)


def get_with_asgi(path):
    @async_to_sync
    async def get():
        response = await AsyncClient().get(path)
        return response, b"".join([chunk async for chunk in response])

    return get()


def get_with_wsgi(path):
    response = Client().get(path)
    return response, b"".join(response)


@pytest.mark.parametrize("get", [get_with_asgi, get_with_wsgi])
@pytest.mark.parametrize("name", STATIC)
def test_static_files_are_served_from_the_apps_without_collectstatic(name, get, static_files):
    response, content = get(f"/static/{name}")

    assert response.status_code == 200
    assert response["Content-Type"].startswith(("text/css", "text/javascript"))
    assert int(response["Content-Length"]) == len(content) > 1000


def database_settings(module, **env):
    """Return DATABASES["default"] of a process that imported this module."""
    code = f"import {module}; from django.conf import settings as s; import json; d = s.DATABASES['default']"
    code += "; print(json.dumps(d, default=str))"
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=BASE, env=inherited | env, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


POSTGRES = "postgres://shop:secret@db.example/shop?sslmode=require"


def test_asgi_on_postgresql_uses_one_connection_pool_per_process():
    database = database_settings("project.asgi", DATABASE_URL=POSTGRES, DATABASE_POOL_SIZE="7")

    assert database["CONN_MAX_AGE"] == 0  # Django refuses a pool with persistent connections
    assert database["OPTIONS"]["pool"]["max_size"] == 7
    assert database["OPTIONS"]["sslmode"] == "require"


@pytest.mark.only_on("postgresql")
def test_a_web_process_reconnects_as_soon_as_its_database_is_back_however_long_the_outage():
    options = database_settings("project.asgi", DATABASE_URL=POSTGRES)["OPTIONS"]["pool"]
    with (
        PostgresServer() as server,
        ConnectionPool(f"host={server.directory} user={server.user} dbname=postgres", **options) as pool,
    ):
        pool.wait()
        with stopped(server):
            for _ in range(11):  # requests that wait one second each
                with pytest.raises((PoolTimeout, OperationalError)), pool.connection(timeout=1) as connection:
                    connection.execute("SELECT 1")
        with pool.connection(timeout=3) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_asgi_on_sqlite_closes_the_connection_after_each_request():
    assert database_settings("project.asgi")["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize("module", ["project.wsgi", "project.celery"])
def test_outside_asgi_each_thread_keeps_its_connection(module):
    database = database_settings(module, DATABASE_URL=POSTGRES, DATABASE_POOL_SIZE="7")

    assert database["CONN_MAX_AGE"] == 600
    assert "pool" not in database["OPTIONS"]


@pytest.mark.parametrize("size", ["0", "-1", "many", "1.5"])
def test_an_invalid_pool_size_is_refused_with_the_name_of_the_variable(size, monkeypatch):
    monkeypatch.setenv("DATABASE_POOL_SIZE", size)
    with pytest.raises(ImproperlyConfigured, match="DATABASE_POOL_SIZE="):
        positive_int("DATABASE_POOL_SIZE", "10")


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
def test_rate_limits_are_counted_in_redis_if_it_is_configured(url, backend):
    assert cache(url)["BACKEND"].endswith(backend)


def test_rate_limits_are_counted_over_the_unix_socket_of_make_run():
    with RedisServer() as server:
        server.stop()
        server.options["unixsocket"] = f"{server.directory}/redis.sock"
        server.start()
        config = cache(f"unix://{server.directory}/redis.sock")
        counter = RedisCache(config["LOCATION"], {"OPTIONS": config["OPTIONS"], "KEY_PREFIX": config["KEY_PREFIX"]})

        assert counter.add("requests", 1, 60)
        assert counter.incr("requests") == 2
        counter.close()
        with server.client() as client:
            assert client.keys() == ["shop:1:requests"]
