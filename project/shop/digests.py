"""Version tags of what a page shows."""

import hashlib


def digest(*values: object) -> str:
    return hashlib.blake2s(repr(values).encode(), digest_size=6).hexdigest()
