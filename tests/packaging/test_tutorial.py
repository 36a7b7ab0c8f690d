"""Execute docs/tutorial.md in an empty directory, with a real Redis, worker, beat and PostgreSQL."""

import urllib.request
from pathlib import Path

import pytest

from tests.packaging import documents
from tests.packaging.wheels import ROOT
from tests.support.servers import PostgresServer, RedisServer, free_port, wait_until

TUTORIAL = ROOT / "docs" / "tutorial.md"
PRODUCTION = "## 7. Production"

pytestmark = pytest.mark.xdist_group("packaging")


def responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def test_every_block_of_the_tutorial_works(
    wheel: Path, tmp_path: Path, redis_server: RedisServer, postgres_server: PostgresServer
) -> None:
    redis_server.flush()
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">PASSWORD", "~*", "&*", "+@all")
    postgres_server.make_database("tutorial")
    folder, port, redis = tmp_path / "shop", free_port(), f"127.0.0.1:{redis_server.port}"
    instead = {
        "python3 -m venv": "python3 -m venv --without-pip",  # documents.complete() adds pip, faster
        "/path/to/this/checkout": str(wheel),
        "localhost:6379": redis,
        "redis.internal:6379/0": f"{redis}/2",  # another Redis
        "redis.internal:6379/1": f"{redis}/3",
        "DATABASE_HOST=db.internal": f"DATABASE_HOST={postgres_server.directory}",
        "DATABASE_NAME=shop": "DATABASE_NAME=tutorial",
        "DATABASE_USER=shop": f"DATABASE_USER={postgres_server.user}",
        "127.0.0.1:8000": f"127.0.0.1:{port}",
        "/srv/shop": str(folder),
        "/tmp/shop-beat": str(tmp_path / "shop-beat"),
    }
    begins = TUTORIAL.read_text().split(PRODUCTION)[0].count("\n")
    blocks = documents.blocks(TUTORIAL)
    with documents.reading(tmp_path, documents.plain_environment(tmp_path), instead) as reader:
        for block in (each for each in blocks if each.line < begins):
            reader.follow(block)
            if (folder / ".venv").exists():
                documents.complete(folder / ".venv", wheel, "postgres")
        wait_until(lambda: responds(f"http://127.0.0.1:{port}/admin/login/"), seconds=30, what="the admin to answer")
        reader.stop()  # "with Ctrl-C"
        for block in (each for each in blocks if each.line > begins):
            reader.follow(block)
