"""Folder of the pipeline's files, on a disk or in an object store. Uses pyarrow only, no Spark.

    archive.json, report.json, audit.json, stream.json    documents, published last and atomically by a rename
    archive/jobs/, archive/events/, report/hours/, report/capacity/, audit/dimensions/, stream/events/, stream/minutes/
                                          Delta tables
    report/<run>/, audit/<run>/           files of a run. A folder that no document names was left by a killed run,
                                          and is ignored
    load/<run>/run.json                   document of a load; each load has its own
    preflight/<run>/                      files of a running check of the executors

Readers follow the documents and the tables' logs. They never list folders to find data.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from pyarrow import ArrowException, fs

from ..addresses import local_path

VERSION = 1  # default format version of a document
LOG = "_delta_log"  # folder of the log in a Delta table
HIDDEN = re.compile(r"(^|/)(\.|_[^/=]*(/|$))")  # a path with a name that Spark ignores below a folder
WRITE_TIMEOUT = timedelta(hours=1)  # a write takes seconds: an older temporary file was left by a killed process


class LakeError(Exception):
    """The lake's files are missing, damaged or in an unknown format."""


# For S3, Hadoop's client expects URIs that begin with s3a:, and pyarrow expects s3:.


def for_spark(uri: str) -> str:
    return f"s3a:{uri.removeprefix('s3:')}" if uri.startswith("s3:") else uri


def for_reading(uri: str) -> str:
    """Return the URI of one file or folder for Spark's reader, which takes a path with [ or { for a pattern.

    Raises LakeError for the name of a file that Spark ignores, and for a local name with a colon: Hadoop takes what
    precedes it for the scheme of a URI. In a path without such characters, folders may have one.
    """
    escaped = re.sub(r"[\[\]{}*?\\]", r"\\\g<0>", uri)
    path = uri.removeprefix("file://")
    if HIDDEN.search(uri.rpartition("/")[2]):
        raise LakeError(f"Spark ignores {path}, because its name begins with _ or a dot. Rename it.")
    if path != uri and ":" in (path if escaped != uri else path.rpartition("/")[2]):
        raise LakeError(f"Spark cannot read {path}: the name has a colon. Rename it.")
    return escaped


def for_pyarrow(uri: str) -> str:
    return f"s3:{uri.removeprefix('s3a:')}" if uri.startswith("s3a:") else uri


def open_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI, and the path in it. Raises LakeError."""
    parts = urlsplit(uri)
    if parts.query or parts.password is not None or (parts.scheme == "s3" and parts.username is not None):
        raise LakeError(
            f"The URI {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} was given with a password "
            "or parameters, which would be shown in messages. Set them in the environment, for S3 as "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL."
        )
    try:
        files, base = fs.FileSystem.from_uri(uri)
    except (ArrowException, OSError) as error:
        raise LakeError(
            f"{uri} cannot be opened: {error}. Use a path, or a URI that both Spark and pyarrow support (file:, s3:, "
            "gs:, hdfs:)."
        ) from error
    return files, base


def files_below(files: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Return the files below a folder. Raises LakeError for a link to a missing file, which pyarrow leaves out.

    As Spark does, it ignores links with a hidden name.
    """
    if isinstance(files, fs.LocalFileSystem):
        for path, _, names in os.walk(folder, followlinks=True):
            for each in (os.path.join(path, name) for name in names):
                if os.path.islink(each) and not os.path.exists(each) and not HIDDEN.search(each.removeprefix(folder)):
                    raise LakeError(f"{each} is a link to {os.readlink(each)}, which does not exist. Remove the link.")
    return [each for each in files.get_file_info(fs.FileSelector(folder, recursive=True)) if each.is_file]


def check_no_delta_table(files: fs.FileSystem, paths: Iterable[str]) -> None:
    """Raise LakeError if one of these files is in the folder of a Delta table, which also has files with deleted rows.

    paths   all files of an input, including hidden ones: a table is recognized by the files of its log

    On a local disk, a table is recognized as well if the paths are only a part of it.
    """
    found = {path.partition(f"/{LOG}/")[0] for path in paths if f"/{LOG}/" in path}
    if isinstance(files, fs.LocalFileSystem):
        folders = {folder for path in paths for folder in PurePath(path).parents}
        found |= {str(folder) for folder in folders if os.path.isdir(folder / LOG)}
    if found:
        table = min(found)
        raise LakeError(
            f"{table} is a Delta table. Its folder also has files with rows that were deleted or changed since. Copy "
            f"the rows of the table's version to other Parquet files, for example with DuckDB: COPY (SELECT * FROM "
            f"delta_scan('{table}')) TO 'rows.parquet'."
        )


class Lake:
    """The folder of the pipeline's files.

    root   a path, or a URI that both Spark and pyarrow support: file:, s3: or s3a:, gs:, hdfs:. Without parameters
           and without credentials, which would be written into documents and messages

    Raises LakeError for a URI that pyarrow cannot open.
    """

    def __init__(self, root: str) -> None:
        root = for_pyarrow(root)
        path = local_path(root)
        if path is None:
            self.scheme, self.root = urlsplit(root).scheme, root
            self.files, self.base = open_uri(root)
        else:
            self.scheme, self.root = "file", os.path.abspath(path)  # executors have another working directory
            self.files, self.base = fs.LocalFileSystem(), self.root

    def path(self, name: str) -> str:
        """Return the path of a file or folder for pyarrow. name: its path relative to the root."""
        return f"{self.base.rstrip('/')}/{name}"

    def uri(self, name: str) -> str:
        """Return the URI of a file or folder for Spark. name: its path relative to the root."""
        return f"file://{self.path(name)}" if self.scheme == "file" else for_spark(self.location(name))

    def location(self, name: str) -> str:
        """Return the path of a file or folder, or its URI if the lake is not on a disk."""
        return self.path(name) if self.scheme == "file" else f"{self.root.rstrip('/')}/{name}"

    # Documents

    def document(self, name: str, version: int = VERSION) -> dict[str, Any]:
        """Return a published document, or {} if there is none.

        version   newest known format version of this document

        Raises LakeError if the document is damaged or has a newer format.
        """
        text = self._read(name)
        try:
            document = {} if text is None else dict(json.loads(text))
            is_newer = document.get("version", VERSION) > version
        except (ValueError, TypeError) as error:
            raise LakeError(f"{self.path(name)} is damaged: {error}.") from error
        if is_newer:
            raise LakeError(
                f"{self.path(name)} was written by a newer delaytasks (format {document['version']}; this one reads "
                f"up to {version}): update delaytasks here."
            )
        return document

    def _read(self, name: str) -> bytes | None:
        if self.files.get_file_info(self.path(name)).type == fs.FileType.NotFound:
            return None
        with self.files.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def publish(self, name: str, document: dict[str, Any]) -> None:
        """Replace a document atomically and durably: readers get either the old document or the new one."""
        self.write(name, json.dumps({"version": VERSION, **document}, indent=1).encode())
        self._remove_temporary_files(name)

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically and durably."""
        self.make_folder(os.path.dirname(name))
        temporary = f"{self.path(name)}.{uuid4().hex}.tmp"
        with self.files.open_output_stream(temporary) as stream:
            stream.write(data)
        self._sync(temporary)
        self.files.move(temporary, self.path(name))
        self._sync(os.path.dirname(self.path(name)))

    def _remove_temporary_files(self, name: str) -> None:
        """Remove temporary files that killed processes left. Ignores errors: the next publication tries again."""
        folder, document = os.path.split(self.path(name))
        temporary = re.compile(re.escape(document) + r"\.[0-9a-f]{32}\.tmp")
        before = datetime.now(UTC) - WRITE_TIMEOUT
        with contextlib.suppress(OSError, ArrowException):
            for each in self.files.get_file_info(fs.FileSelector(folder)):
                if temporary.fullmatch(each.base_name) and each.mtime is not None and each.mtime < before:
                    self.files.delete_file(each.path)

    # Runs

    def new_run(self, application: str) -> str:
        """Return a name for the folder of a new run, such as `report/20301231T235959-1a2b3c4d`. Creates nothing."""
        return f"{application}/{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"

    def runs(self, application: str) -> list[str]:
        """Return the folders in this folder: those of runs, published or not, of Delta tables and of partitions."""
        infos = self.files.get_file_info(fs.FileSelector(self.path(application), allow_not_found=True))
        return sorted(f"{application}/{each.base_name}" for each in infos if each.type == fs.FileType.Directory)

    def files_in(self, application: str) -> list[str]:
        """Return the files directly in an application's folder, beside the runs' folders."""
        infos = self.files.get_file_info(fs.FileSelector(self.path(application), allow_not_found=True))
        return sorted(f"{application}/{each.base_name}" for each in infos if each.type == fs.FileType.File)

    def has(self, name: str) -> bool:
        return bool(self.files.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def move(self, name: str, target: str) -> None:
        """Move a file. Does nothing if it was moved before."""
        if not self.has(target):
            self.make_folder(os.path.dirname(target))
            self.files.move(self.path(name), self.path(target))

    def make_folder(self, name: str) -> None:
        """Create a folder with those above it. Not in an object store, which would keep an empty object for it."""
        if self.scheme in ("file", "hdfs"):
            self.files.create_dir(self.path(name), recursive=True)

    def remove(self, name: str) -> None:
        self.files.delete_dir(self.path(name))

    def remove_empty_folders(self, name: str) -> None:
        """Remove the folders in a folder, and the folder itself, that contain no file. An object store has none."""
        if self.scheme == "file":
            for path, _, _ in os.walk(self.path(name), topdown=False):
                with contextlib.suppress(OSError):  # it contains a file
                    os.rmdir(path)

    def parquet(self, name: str) -> list[tuple[str, int]]:
        """Return the path, relative to the root, and the bytes of each Parquet file in a folder and below."""
        return self.list_files(name, ".parquet")

    def list_files(self, name: str, ending: str) -> list[tuple[str, int]]:
        """Return the path, relative to the root, and the bytes of each file with this ending in a folder and below."""
        selector = fs.FileSelector(self.path(name), recursive=True, allow_not_found=True)
        infos = [each for each in self.files.get_file_info(selector) if each.base_name.endswith(ending)]
        return sorted((each.path.removeprefix(self.path("")), each.size) for each in infos)

    @contextlib.contextmanager
    def reading(self, name: str, what: str = "") -> Iterator[str]:
        """Yield the path of a file, and raise LakeError instead of an error of reading it inside the block.

        what   description of the file's contents for the message, such as a partition
        """
        try:
            yield self.path(name)
        except (OSError, ArrowException) as error:
            raise LakeError(
                f"{self.path(name)}{f' ({what})' if what else ''} is missing or damaged, though the lake names it: "
                f"{str(error).splitlines()[0]} Restore it from a backup."
            ) from error

    # Durability: rows are deleted from the database only after their copies in the lake would survive a power cut.

    def sync(self, name: str) -> None:
        """Flush all files and folders in a folder to the disk. Does nothing for an object store, which is durable."""
        for path in self._all(name):
            self._sync(path)

    def sync_files(self, names: Iterable[str]) -> None:
        """Flush these files and their folders to the disk. names: paths relative to the root."""
        paths = {self.path(name) for name in names}
        for path in sorted(paths | {os.path.dirname(path) for path in paths}):
            self._sync(path)

    def _all(self, name: str) -> Iterator[str]:
        for each in self.files.get_file_info(fs.FileSelector(self.path(name), recursive=True)):
            yield each.path
        yield self.path(name)
        yield os.path.dirname(self.path(name))

    def _sync(self, path: str) -> None:
        if self.scheme != "file":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
