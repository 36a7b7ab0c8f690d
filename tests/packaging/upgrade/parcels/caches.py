"""Django's Redis cache, with a record of the values that could not be read."""

from django.core.cache.backends.redis import RedisCache

unreadable = []  # "key: error" of each value that this process failed to unpickle


class RecordingCache(RedisCache):
    def get(self, key, default=None, version=None):
        try:
            return super().get(key, default, version)
        except Exception as error:
            unreadable.append(f"{key}: {error!r}")
            raise
