"""extend_lock.lua and release_lock.lua: only the holder can extend or release a lock."""

import pytest

from tests.mirror.lua.bucket import Bucket

TTL = 60_000


@pytest.fixture
def key(bucket: Bucket) -> str:
    return bucket.keys.lock("rebuild")


def extend(bucket: Bucket, key: str, token: str) -> int:
    return bucket.call("extend_lock", [key], [token, TTL])


def release(bucket: Bucket, key: str, token: str) -> int:
    return bucket.call("release_lock", [key], [token])


def test_the_holder_extends_its_lock(bucket: Bucket, key: str) -> None:
    bucket.client.set(key, "own", px=1_000)
    assert extend(bucket, key, "own") == 1
    assert bucket.client.get(key) == "own"
    assert 1_000 < bucket.client.pttl(key) <= TTL


def test_another_process_cannot_extend_a_lock(bucket: Bucket, key: str) -> None:
    bucket.client.set(key, "other", px=1_000)
    assert extend(bucket, key, "own") == 0
    assert bucket.client.get(key) == "other"
    assert bucket.client.pttl(key) <= 1_000


def test_extending_an_expired_lock_does_not_take_it(bucket: Bucket, key: str) -> None:
    assert extend(bucket, key, "own") == 0
    assert not bucket.client.exists(key)


def test_the_holder_releases_its_lock(bucket: Bucket, key: str) -> None:
    bucket.client.set(key, "own", px=1_000)
    assert release(bucket, key, "own") == 1
    assert not bucket.client.exists(key)


def test_another_process_cannot_release_a_lock(bucket: Bucket, key: str) -> None:
    bucket.client.set(key, "other", px=1_000)
    assert release(bucket, key, "own") == 0
    assert bucket.client.get(key) == "other"


def test_releasing_an_expired_lock_does_nothing(bucket: Bucket, key: str) -> None:
    assert release(bucket, key, "own") == 0
