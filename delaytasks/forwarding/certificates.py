"""The TLS contexts of webhooks. Loading the certificates to trust takes longer than the rest of a request."""

import os
import ssl
import time

SYSTEM_SECONDS = 300  # the certificates of the system are loaded again after so long
_contexts: dict[str | None, tuple[float, ssl.SSLContext]] = {}  # ca_file -> (version of its certificates, context)


def context(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of a file; None: those of the system.

    It is cached until the file changes, or for SYSTEM_SECONDS. Raises OSError if the file cannot be read.
    """
    version = time.monotonic() // SYSTEM_SECONDS if ca_file is None else os.stat(ca_file).st_mtime
    cached = _contexts.get(ca_file)
    if cached is None or cached[0] != version:
        cached = _contexts[ca_file] = version, ssl.create_default_context(cafile=ca_file)
    return cached[1]
