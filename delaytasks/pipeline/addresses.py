"""Addresses of lakes, as the LAKE setting and --lake have them: a path, or a URI."""

from urllib.parse import unquote, urlsplit


def local_path(root: str) -> str | None:
    """Return the path of a lake in the file system of this host; None if it is elsewhere, such as s3://bucket/lake.

    root   a path, which is taken literally, or a URI, whose percent signs are decoded if it begins with file:
    """
    if root.startswith("file:"):
        return unquote(urlsplit(root).path)
    return None if urlsplit(root).scheme else root
