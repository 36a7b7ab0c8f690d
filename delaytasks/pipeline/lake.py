"""The folder of the pipeline's files, on a disk or in an object store. Read with pyarrow alone, without Spark.

    archive.json, report.json, audit.json, stream.json    what there is: each published last, at once, by a rename
    archive/<run>/, report/<run>/, audit/<run>/, stream/<part>/    what a run wrote; one that no document names is a
                                          killed run's and means nothing
    load/<run>/run.json                   the same for a load, which has a document of its own

Who reads goes by the documents and never by what lies in a folder.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyarrow import ArrowException, fs

VERSION = 1  # of what is written here
SURELY_KILLED = timedelta(hours=1)  # a writer that has not come to its rename by then: it takes seconds


class LakeError(Exception):
    """The lake's files are not as this version of delaytasks writes them."""


class Lake:
    """root   a path, or a URI that both Spark and pyarrow know: file:, s3:, gs:, hdfs:

    Raises LakeError for one that pyarrow does not know.
    """

    def __init__(self, root: str) -> None:
        remote = bool(urlsplit(root).scheme) and not root.startswith("file:")
        self.scheme = urlsplit(root).scheme if remote else "file"
        if remote:
            try:
                self.files, self.base = fs.FileSystem.from_uri(root)
            except (ArrowException, OSError) as error:
                raise LakeError(
                    f"The lake cannot be opened: {error}. Name a folder, or a URI that both Spark and pyarrow know "
                    "(file:, s3:, gs:, hdfs:)."
                ) from error
        else:
            path = unquote(urlsplit(root).path) if root.startswith("file:") else root
            self.files, self.base = fs.LocalFileSystem(), os.path.abspath(path)
        self.root = root if remote else self.base  # an executor is in another folder

    def path(self, name: str) -> str:
        """As pyarrow names it."""
        return f"{self.base.rstrip('/')}/{name}"

    def uri(self, name: str) -> str:
        """As Spark names it."""
        return f"file://{self.path(name)}" if self.scheme == "file" else f"{self.root.rstrip('/')}/{name}"

    # Documents

    def document(self, name: str) -> dict[str, Any]:
        """A published document; an empty one if there is none yet. Raises LakeError: damaged, or of a newer version."""
        text = self._text(name)
        try:
            found = {} if text is None else dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise LakeError(f"{self.path(name)} is damaged: {error}.") from error
        if found.get("version", VERSION) > VERSION:
            raise LakeError(
                f"{self.path(name)} was written by a newer delaytasks (its format is {found['version']}, this one "
                f"knows up to {VERSION}): update delaytasks here."
            )
        return found

    def _text(self, name: str) -> bytes | None:
        if self.files.get_file_info(self.path(name)).type == fs.FileType.NotFound:
            return None
        with self.files.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def publish(self, name: str, document: dict[str, Any]) -> None:
        """Put a document in the place of the one before, at once and for good: readers see the one or the other."""
        self.write(name, json.dumps({"version": VERSION, **document}, indent=1).encode())
        self._forget_halves(name)

    def write(self, name: str, data: bytes) -> None:
        """The same for any file."""
        self.files.create_dir(os.path.dirname(self.path(name)), recursive=True)
        half = f"{self.path(name)}.{uuid4().hex}.tmp"
        with self.files.open_output_stream(half) as stream:
            stream.write(data)
        self._sync(half)
        self.files.move(half, self.path(name))
        self._sync(os.path.dirname(self.path(name)))

    def _forget_halves(self, name: str) -> None:
        """Remove what killed writers of this document left. It is worth no error: the next one tries again."""
        folder, document = os.path.split(self.path(name))
        half = re.compile(re.escape(document) + r"\.[0-9a-f]{32}\.tmp")
        before = datetime.now(UTC) - SURELY_KILLED
        with contextlib.suppress(OSError, ArrowException):
            for each in self.files.get_file_info(fs.FileSelector(folder)):
                if half.fullmatch(each.base_name) and each.mtime is not None and each.mtime < before:
                    self.files.delete_file(each.path)

    # Runs

    def new_run(self, question: str) -> str:
        """A folder's name for what a run writes: `archive/20301231T235959-1a2b3c4d`. Nothing is made yet."""
        return f"{question}/{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"

    def runs(self, question: str) -> list[str]:
        """Every run's folder, published or not."""
        found = self.files.get_file_info(fs.FileSelector(self.path(question), allow_not_found=True))
        return sorted(f"{question}/{each.base_name}" for each in found if each.type == fs.FileType.Directory)

    def beside(self, question: str) -> list[str]:
        """The files that lie beside the runs' folders."""
        found = self.files.get_file_info(fs.FileSelector(self.path(question), allow_not_found=True))
        return sorted(f"{question}/{each.base_name}" for each in found if each.type == fs.FileType.File)

    def has(self, name: str) -> bool:
        return bool(self.files.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def remove(self, name: str) -> None:
        self.files.delete_dir(self.path(name))

    def parquet(self, name: str) -> list[tuple[str, int]]:
        """(path below the lake, bytes) of each Parquet file in a folder."""
        selector = fs.FileSelector(self.path(name), recursive=True, allow_not_found=True)
        found = [each for each in self.files.get_file_info(selector) if each.base_name.endswith(".parquet")]
        return sorted((each.path.removeprefix(self.path("")), each.size) for each in found)

    @contextlib.contextmanager
    def reading(self, name: str, what: str = "") -> Iterator[str]:
        """The path of a file that a document names. Raises LakeError if it turns out inside to be gone or damaged.

        what   it is of, for the sentence: an archived topic and day
        """
        try:
            yield self.path(name)
        except (OSError, ArrowException) as error:
            raise LakeError(
                f"{self.path(name)}{f' ({what})' if what else ''} is gone or damaged, though the lake names it: "
                f"{str(error).splitlines()[0]} Put it back from a copy."
            ) from error

    # Durability: rows are deleted from the database only when what stands for them would outlive a power cut.

    def settle(self, name: str) -> None:
        """Return when what was written to a folder is on the disk; an object store keeps what it has accepted."""
        for path in self._all(name):
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
