"""Cases of the CloudEvents conformance tests (github.com/cloudevents/conformance, licence: Apache-2.0).

EVENT, BINARY_TYPES and STRUCTURED_TYPES: features/kafka-protocol-binding.feature and
features/http-protocol-binding.feature. VALID and INVALID: format/json/valid-events.json and invalid-events.json.
"""

from typing import Any

# The event of each scenario, and its data.
EVENT = {
    "specversion": "1.0",
    "id": "1234-1234-1234",
    "type": "com.example.someevent",
    "source": "/mycontext/subcontext",
    "time": "2018-04-05T03:56:24Z",
}
DATA = {"message": "Hello World!"}
# The content types of the messages in binary mode, which are the datacontenttype of the event.
BINARY_TYPES = ("application/json", "application/json; charset=utf-8")
# Those of the messages in structured mode. The datacontenttype of their event is application/json.
STRUCTURED_TYPES = ("application/cloudevents+json", "application/cloudevents+json; charset=utf-8")

_TEST = {"specversion": "1.0", "type": "io.cloudevents.test", "source": "https://cloudevents.io"}
_MINIMAL, _WITH_TIME = {**_TEST, "id": "minimal"}, {**_TEST, "id": "minimalWithTime"}
_INVALID = {**_TEST, "id": "invalid"}

VALID: dict[str, dict[str, Any]] = {
    "validMinimal": _MINIMAL,
    "validMinimalWithNullForOptional": {
        **_MINIMAL, "datacontenttype": None, "dataschema": None, "subject": None, "time": None,
    },
    "validAllCoreAttributes": {
        **_TEST, "id": "allCore", "datacontenttype": "text/plain", "dataschema": "https://cloudevents.io/dataschema",
        "subject": "tests", "time": "2018-04-05T17:31:00Z",
    },
    "validMinimalWithTimeUtc": {**_WITH_TIME, "time": "2018-04-05T17:31:00Z"},
    "validMinimalWithTimeToNanosecondsUtc": {**_WITH_TIME, "time": "2018-04-05T17:31:00.000000000Z"},
    "validMinimalWithTimeUsingPositiveOffset": {**_WITH_TIME, "time": "2018-04-05T18:31:00+01:00"},
    "validMinimalWithTimeUsingNegativeOffset": {**_WITH_TIME, "time": "2018-04-05T16:31:00-01:00"},
    "validRelativeSource": {**_TEST, "id": "minimalWithRelativeSource", "source": "#fragment"},
    "validSimpleTextData": {
        **_TEST, "id": "simpleTextData", "datacontenttype": "text/plain", "data": "Simple text",
    },
    "validAllExtensionTypes": {
        **_TEST, "id": "allExtensionTypes", "extinteger": 10, "extboolean": True, "extstring": "text",
        "exturi": "https://cloudevents.io", "exturiref": "//authority/path",
        "exttimestamp": "2023-03-31T15:12:00Z", "extbinary": "TWE=",
    },
}  # fmt: skip


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _INVALID.items() if key != name}


INVALID: dict[str, dict[str, Any]] = {
    "invalidNoSpecVersion": _without("specversion"),
    "invalidNoId": _without("id"),
    "invalidNoType": _without("type"),
    "invalidNoSource": _without("source"),
    "invalidTimeGarbage": {**_INVALID, "time": "lunchtime"},
    "invalidTimeToMinute": {**_INVALID, "time": "2018-04-05T18:31Z"},
    "invalidTimeOffsetX": {**_INVALID, "time": "2018-04-05T18:31:00X"},
    "invalidTimeOffsetOutOfRange": {**_INVALID, "time": "2018-04-05T18:31:00+25:00"},
    "invalidTimeOffsetNonInteger": {**_INVALID, "time": "2018-04-05T18:31:00+xx:00"},
    "invalidTimeOffsetHourOnly": {**_INVALID, "time": "2018-04-05T18:31:00+05"},
    "invalidEmptyId": {**_INVALID, "id": ""},
    "invalidEmptyType": {**_INVALID, "type": ""},
    "invalidEmptySource": {**_INVALID, "source": ""},
    "invalidEmptySpecVersion": {**_INVALID, "specversion": ""},
    "invalidUnknownSpecVersion": {**_INVALID, "specversion": "0.9"},
    "invalidNonRfc2046DataContentType": {**_INVALID, "datacontenttype": "xyz"},
    "invalidEmptyDataContentType": {**_INVALID, "datacontenttype": ""},
    "invalidEmptyDataSchema": {**_INVALID, "dataschema": ""},
    "invalidEmptySubject": {**_INVALID, "subject": ""},
    "invalidNumericId": {**_INVALID, "id": 25},
    "invalidObjectId": {**_INVALID, "id": {"xyz": "abc"}},
    "invalidCapitalizedExtension": {**_INVALID, "MyExtension": "bad"},
    "invalidPunctuatedExtension": {**_INVALID, "my.extension": "bad"},
    "invalidNonIntegerExtensionValue": {**_INVALID, "my.extension": 1.5},
    "invalidBothDataAndDataBase64": {**_INVALID, "data": "text", "data_base64": "eyAieHl6IjogMTIzIH0="},
}
