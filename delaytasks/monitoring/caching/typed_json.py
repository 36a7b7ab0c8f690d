"""Encode statistics as JSON, and decode them strictly by their Python types.

Supported are None, bool, int, float, str, datetime, Literal, unions of one type and None, tuple, list, dict, Mapping,
Counter, NamedTuples and dataclasses. Decoding raises ValueError unless the data has exactly the given types, because
other programs may write to the cache.
"""

import dataclasses
import functools
import json
import types
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Union, get_args, get_origin

Decoder = Callable[[Any], Any]


def encode(value: Any) -> str:
    """Return the JSON of a value. Objects become lists of their fields, dicts become lists of pairs."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, each.name)) for each in dataclasses.fields(value)]
    return value


def decode(kind: Any, text: str) -> Any:
    """Return the value of this type from its JSON. Raises ValueError if it, or a part of it, has another type.

    kind   a type, as in an annotation; Any for JSON data as it is
    """
    try:
        return decoder(kind)(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not the JSON of {kind}: {error}") from error


@functools.cache
def decoder(kind: Any) -> Decoder:
    """Return a function that converts JSON data to this type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda data: data
    if origin is Literal:
        return lambda data: _expect(data in args, data, kind)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin in (tuple, list):
        return _sequence(origin, args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(
            Counter if origin is Counter else dict, decoder(args[0]), decoder(int if origin is Counter else args[1])
        )
    if kind is datetime:
        return lambda data: datetime.fromisoformat(_expect(isinstance(data, str), data, kind))
    if issubclass(kind, tuple) or dataclasses.is_dataclass(kind):
        return _object(kind)
    return _scalar(kind)


def _expect(holds: bool, data: Any, kind: Any) -> Any:
    if not holds:
        raise ValueError(f"{data!r:.80} is not of type {kind}")
    return data


def _scalar(kind: type) -> Decoder:
    allowed = (int, float) if kind is float else (kind,)
    return lambda data: _expect(type(data) in allowed, data, kind)  # not isinstance(): a bool is an instance of int


def _union(args: Sequence[Any]) -> Decoder:
    (inner,) = [decoder(each) for each in args if each is not types.NoneType]
    return lambda data: None if data is None else inner(data)


def _sequence(origin: type, args: Sequence[Any]) -> Decoder:
    if origin is list or args[1:] == (...,):
        inner = decoder(args[0])
        return lambda data: origin(map(inner, _expect(isinstance(data, list), data, origin)))
    return _fields(tuple, [decoder(each) for each in args])


def _mapping(make: type, key: Decoder, value: Decoder) -> Decoder:
    def decode_pairs(data: Any) -> Any:
        return make({key(k): value(v) for k, v in _expect(isinstance(data, list), data, make)})

    return decode_pairs


def _object(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else [each.name for each in dataclasses.fields(kind)]
    return _fields(lambda values: kind(*values), [decoder(hints[name]) for name in names])


def _fields(make: Callable[[Any], Any], decoders: Sequence[Decoder]) -> Decoder:
    def decode_fields(data: Any) -> Any:
        _expect(isinstance(data, list), data, list)
        return make([each(value) for each, value in zip(decoders, data, strict=True)])

    return decode_fields
