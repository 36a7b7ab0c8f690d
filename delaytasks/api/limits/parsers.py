"""Read and parse request bodies within limits, so that a hostile body costs little.

A body that is too long is refused before it is read, and one with too many values before it is parsed. Functions in C
count the values, so a refusal takes about a millisecond per MiB and no memory beyond the body.
"""

import io
import json
import math
import re
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from django.http import QueryDict
from rest_framework.exceptions import ParseError, Throttled, UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from ... import conf, validators
from ..access import throttling
from ..access.permissions import Caller
from . import garbage, portions
from .lengths import declared_length

MAX_DEPTH = validators.MAX_DEPTH + 10  # nested levels in a request: those of a job's body plus the levels around it
SINGLE_EXTRA_BYTES = 128 * 1024  # added to MAX_BODY_BYTES for a request with one job: other fields, escapes
MAX_CONTAINERS = 50_000  # lists and objects in a request; each takes 56 bytes or more
MAX_VALUES = 500_000  # values in a request, estimated as commas + containers
LARGE_BYTES = 256 * 1024  # a process parses at most two bodies above this size at a time
_large = threading.BoundedSemaphore(2)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class RequestTooLarge(Exception):
    """The request body exceeds the limit of the caller or of the address."""

    def __init__(self, most: int, whose: str = "this caller") -> None:
        super().__init__(f"The request body exceeds {most:,} bytes, the limit of {whose}.")


def body_limit(caller: Caller, *, bulk: bool) -> tuple[int, str]:
    """Return the largest body that this caller may send, and whose limit it is.

    bulk   whether the address takes many jobs at once
    """
    most = conf.get().max_body_bytes + SINGLE_EXTRA_BYTES
    if bulk or caller.max_request_bytes <= most:
        return caller.max_request_bytes, "this caller"
    return most, "a request with one job"


def may_be_bulk(body: bytes) -> bool:
    """Return False if this is certainly no bulk request: it has no key "jobs", not even written with escapes."""
    return b'"jobs"' in body or b"\\" in body


class CountedRequest(Request):
    """A request that reads its body up to the limit of the caller and the address, also without a Content-Length.

    Before that, the server may have received more bytes: FastPath and BodyLimit refuse them earlier.
    """

    bulk = False  # set by the view: the address takes many jobs at once
    size = 0  # size of the body in bytes; 0 before it is read

    @property
    def POST(self) -> QueryDict:
        """An empty QueryDict: the CSRF token must come in its header, so Django need not parse a form."""
        return QueryDict()

    def _load_stream(self) -> None:
        most, whose = body_limit(self.auth, bulk=self.bulk)
        if declared_length(self._request.META.get("CONTENT_LENGTH") or "") > most:
            raise RequestTooLarge(most, whose)
        body = self.body if self._request._read_started else self._request.read(most + 1)
        if len(body) > most:
            raise RequestTooLarge(most, whose)
        self.size = len(body)
        if self.bulk and not may_be_bulk(body):
            self.require_single()
        self._count_bytes(len(body))
        garbage.count(len(body))
        encoding = self._request.headers.get("Content-Encoding", "")
        if body and encoding.lower() not in ("", "identity"):
            raise UnsupportedMediaType(encoding, f"The body is compressed, with Content-Encoding: {encoding:.40}.")
        self._stream = io.BytesIO(body) if body else None

    def require_single(self) -> None:
        """Raise RequestTooLarge if the body is too large for a request with one job."""
        most, whose = body_limit(self.auth, bulk=False)
        if self.size > most:
            raise RequestTooLarge(most, whose)

    def _count_bytes(self, size: int) -> None:
        if getattr(self._request, "scope", {}).get(throttling.COUNTED):
            return
        wait_seconds = portions.take_bytes(self.auth, size)
        if wait_seconds is not None:
            raise Throttled(wait=math.ceil(wait_seconds))


class JSONParser(BaseParser):
    """Parse JSON in UTF-8 (RFC 8259). Refuses NaN, Infinity and values that could not be serialized again."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping | None = None) -> Any:
        body = stream.read()
        check_number_of_values(body)
        with _large if len(body) > LARGE_BYTES else nullcontext():
            return _parse(body)


def check_number_of_values(body: bytes) -> None:
    """Raise ParseError for a body with so many values that parsing it would take long and much memory."""
    containers = body.count(b"[") + body.count(b"{")
    if containers > MAX_CONTAINERS:
        raise ParseError(f"The request body has {containers:,} brackets; at most {MAX_CONTAINERS:,} are allowed.")
    values = containers + body.count(b",")
    if values > MAX_VALUES:
        raise ParseError(f"The request body has {values:,} brackets and commas; at most {MAX_VALUES:,} are allowed.")


def _parse(body: bytes) -> Any:
    try:
        text = body.decode()
        # Check before parsing: a deeper value could be parsed, but overflow the stack when it is serialized.
        if validators.depth(text) > MAX_DEPTH:
            raise ParseError(f"The request body is nested deeper than {MAX_DEPTH} levels.")
        data = _decoder.decode(text)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()  # refuses lone surrogates: no response can contain them
    except UnicodeEncodeError:
        raise ParseError(r"The request body has half of a surrogate pair, such as \ud83d alone.") from None
    except UnicodeDecodeError as error:
        raise ParseError(f"The request body is not UTF-8: {error.reason}.") from None
    except ValueError as error:
        raise ParseError(f"The request body is not JSON: {error}.") from None
    return data


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


_decoder = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant)
