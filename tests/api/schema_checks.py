"""Check requests and responses against the OpenAPI document."""

import json
import re
from typing import Any

from django.http import HttpResponse
from jsonschema import Draft202012Validator

from delaytasks.api.schema.document import document


def operation_of(method: str, path: str) -> dict[str, Any]:
    """Return the operation for a URL. Raises LookupError."""
    found = document()["paths"]
    for template, operations in found.items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in operations:
            operation: dict[str, Any] = operations[method.lower()]
            return operation
    raise LookupError(f"{method} {path}")


def schema_errors(schema: dict[str, Any], value: Any) -> list[str]:
    """Return the schema errors of `value`."""
    made, text = document(), json.dumps(schema)
    if _validators.get("of") is not made:
        _validators.clear()
        _validators["of"] = made
    if text not in _validators:
        _validators[text] = Draft202012Validator({**schema, "components": made["components"]})
    return [f"{error.json_path}: {error.message:.200}" for error in _validators[text].iter_errors(value)]


_validators: dict[str, Any] = {}  # making one takes longer than asking it; "of" is the document they are of


def check_response(method: str, path: str, answer: HttpResponse) -> None:
    """Raises AssertionError for a response with an undocumented status, media type or data."""
    responses = operation_of(method, path)["responses"]
    assert str(answer.status_code) in responses, f"{method} {path} answered {answer.status_code}: not documented"
    content = responses[str(answer.status_code)]["content"]
    media_type = answer.headers["Content-Type"].partition(";")[0]
    assert media_type in content, f"{method} {path} answered {media_type}: not documented"
    if media_type.endswith("json"):
        found = schema_errors(content[media_type]["schema"], answer.json())  # type: ignore[attr-defined]
        assert not found, f"{method} {path} answered {answer.content!r:.500}: {found}"


def check_accepted(method: str, path: str, data: Any) -> None:
    """Raises AssertionError for an accepted request that the document does not allow."""
    body = operation_of(method, path).get("requestBody")
    if body is None:
        assert data in (None, {}), f"{method} {path} takes nothing, and took {data!r}"
    elif data is not None:
        found = schema_errors(body["content"]["application/json"]["schema"], data)
        assert not found, f"{method} {path} took {data!r:.500}: {found}"
