"""Webhook: a target that sends due jobs as signed HTTP requests (Standard Webhooks), as CloudEvents or plain JSON."""

import base64
import email.utils
import ipaddress
import json
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .. import __version__, conf
from ..redaction import redacted
from . import brokers, events, http
from .targets import Failed, Message, Rejected, TargetDown

Secret = str | tuple[str, datetime]
# The message itself is refused: another attempt would be refused as well.
CONTENT_STATUSES = {400, 406, 409, 411, 413, 414, 415, 416, 417, 418, 422, 431}
# Neither the message nor the sender is refused: another attempt may succeed.
RETRY_STATUSES = {408, 423, 425, 500}
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
CLIENT_HEADERS = {"connection", "content-length", "transfer-encoding"}
MAX_RETRY_SECONDS = 3600
MIN_KEY_BYTES = 16
RESPONSE_CHARS = 300
MAKE_SECRET = (
    "python -c \"import base64, secrets; print('whsec_' + base64.b64encode(secrets.token_bytes(32)).decode())\""
)


class BadUrl(ValueError):
    """The URL of a webhook is refused.

    code   "syntax", "credentials" or "scheme"
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"Webhook: {message}")
        self.code = code


class Webhook:
    """A URL that takes each due job as a POST request, confirmed by a 2xx status.

    url             https; no user, no password, no fragment
    secret          str, base64 of 16 bytes or more, with or without "whsec_" before it. To rotate secrets, a list: each
                    request is signed with every secret in it. An item is a str, or a tuple of a str and the aware
                    datetime until which it is used
    timeout         seconds for the whole call, including the DNS lookup; default: 15
    headers         headers to add to each request
    allow_networks  networks such as "10.0.0.0/8" that may be called although they are not public
    allow_http      True: http without TLS is allowed
    ca_file         path of a PEM file with the certificates to trust; None: those of the system

    Redirects are refused, and environment variables for proxies have no effect.

    Raises ValueError for a bad argument.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: Secret | Sequence[Secret] | None = None,
        timeout: float = 15,
        headers: Mapping[str, str] | None = None,
        allow_networks: Iterable[str] = (),
        allow_http: bool = False,
        ca_file: str | None = None,
    ) -> None:
        self.url = checked_url(url, allow_http)
        self.secrets = _checked_secrets(secret)
        self.timeout = brokers.check_timeout(timeout, "Webhook")
        self.headers = _checked_headers(headers or {})
        if isinstance(allow_networks, str):
            raise ValueError(f"Webhook: allow_networks is {allow_networks!r}; give a list of networks.")
        self.networks = [ipaddress.ip_network(network) for network in allow_networks]
        self.ca_file = ca_file
        self._signers()  # reports that the library is missing

    def __repr__(self) -> str:
        return f"Webhook({self.url.scheme}://{self.url.netloc}{self.url.path})"

    def deliver(self, message: Message, timeout_seconds: float) -> str:
        """Send the message. Return the answer, shortened and redacted.

        Raises TargetDown, Rejected, http.Timeout, or Failed for an error that may be temporary.
        """
        encoded = events.encode(message, "http")
        headers = {"user-agent": f"delaytasks/{__version__}", "content-type": encoded.content_type, **encoded.headers}
        headers |= self._signature(message.id, encoded.body) | self.headers
        response = http.post(
            self.url, headers, encoded.body, allowed=self.networks, context=self._tls_context(),
            timeout_seconds=min(self.timeout, timeout_seconds),
        )  # fmt: skip
        return checked_answer(response, hidden=message.hides_body)

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.url.scheme != "https":
            return None
        try:
            return http.tls_context(self.ca_file)
        except OSError as error:
            raise TargetDown(f"ca_file {self.ca_file!r:.200} cannot be read: {error}.") from None

    def _signature(self, message_id: str, body: bytes) -> dict[str, str]:
        if not self.secrets:
            return {"webhook-id": message_id}
        now = datetime.now(UTC)
        signers = self._signers(now)
        if not signers:
            raise TargetDown("Every secret of the webhook has expired.")
        signatures = [signer.sign(message_id, now, body.decode()) for signer in signers]
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }

    def _signers(self, now: datetime | None = None) -> list[Any]:
        """Return a signer for each secret that is valid at `now`; None: for every secret."""
        if not self.secrets:
            return []
        try:
            from standardwebhooks.webhooks import Webhook as Signer
        except ImportError as error:
            raise ValueError(
                "Webhook: to sign, install standardwebhooks: pip install 'delaytasks[webhook]'."
            ) from error
        return [Signer(secret) for secret, until in self.secrets if now is None or until is None or now < until]


def checked_answer(response: http.Response, *, hidden: bool = False) -> str:
    """Return the status and the beginning of the response if it confirms the message.

    hidden   True: leave the response out, because it may repeat a body that people may not see

    Raises Rejected, Failed or TargetDown for any other response.
    """
    status = response.status
    shown = "(The response is hidden, as the topic's bodies are.)" if hidden else _shown(response)
    text = f"The receiver answered {status}. {shown}".removesuffix(" ")
    if 200 <= status < 300:
        return text
    if status in CONTENT_STATUSES:
        raise Rejected(text)
    if status in RETRY_STATUSES or status > 504:
        raise Failed(text)
    if 300 <= status < 400:
        location = redacted(response.headers.get("location", "?"), conf.get().redact)
        text = f"The receiver answered {status}, a redirect{'' if hidden else f' to {location!r:.200}'}: refused."
    raise TargetDown(text, retry_seconds=retry_after(response.headers.get("retry-after")))


def retry_after(value: str | None) -> float | None:
    """Return the seconds to wait according to a Retry-After header, at most MAX_RETRY_SECONDS; 0 for a past date.

    None if the header is missing or not valid.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        seconds = float(value.strip()[:9])
    else:
        try:
            moment = email.utils.parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_SECONDS)


def _shown(response: http.Response) -> str:
    """Return the beginning of the response on one line, with secrets hidden."""
    text = response.body.decode(errors="replace")
    try:
        text = json.dumps(redacted(json.loads(text), conf.get().redact), ensure_ascii=False)
    except (ValueError, RecursionError):
        if any(word.casefold() in text.casefold() for word in conf.get().redact):
            return "(The response is hidden: it contains a word of REDACT.)"
        text = redacted(text, conf.get().redact)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= RESPONSE_CHARS else f"{text[:RESPONSE_CHARS]}..."


def checked_url(url: str, allow_http: bool) -> SplitResult:
    """Return the parts of a URL. Raises BadUrl."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise BadUrl(f"{url!r:.100} is not a URL: use printable ASCII without spaces.", "syntax")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(f"{url!r:.100} is not a URL: {error}.", "syntax") from None
    if parts.username is not None or parts.password is not None:
        raise BadUrl("the URL contains a user or a password. Use secret= or headers=.", "credentials")
    schemes = ("https", "http") if allow_http else ("https",)
    if parts.scheme not in schemes:
        raise BadUrl(f"the scheme of {url!r:.100} is {parts.scheme!r}; use {' or '.join(schemes)}.", "scheme")
    if not parts.hostname or port == 0 or parts.fragment:
        raise BadUrl(f"{url!r:.100} needs a host, a port other than 0 and no fragment.", "syntax")
    return parts


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with names in lower case, so that each is sent once. Raises ValueError."""
    for name, value in headers.items():
        if not all(isinstance(text, str) and text.isascii() and text.isprintable() for text in (name, value)):
            raise ValueError(f"Webhook: header {name!r:.50} is not printable ASCII.")
        if not TOKEN.fullmatch(name):
            raise ValueError(f"Webhook: {name!r:.50} is not the name of a header.")
        if name.lower() in CLIENT_HEADERS:
            raise ValueError(f"Webhook: the header {name!r} is set by the client; it cannot be in headers=.")
    return {name.lower(): value for name, value in headers.items()}


def _check_key(secret: str) -> None:
    """Raise ValueError unless the secret is base64. The library skips other characters, and signs with another key.

    No message shows the secret.
    """
    text = secret.removeprefix("whsec_")
    try:
        size = len(base64.b64decode(text, validate=True))
    except ValueError:
        is_url_safe = re.fullmatch(r"[\w-]+=*", text, re.ASCII) and ("-" in text or "_" in text)
        problem = "is URL-safe base64, with - and _ instead of + and /" if is_url_safe else "is not base64"
    else:
        problem = f"has {size} bytes; use at least {MIN_KEY_BYTES}" if size < MIN_KEY_BYTES else ""
    if problem:
        raise ValueError(f"Webhook: a secret {problem}. To make one: {MAKE_SECRET}")


def _checked_secrets(secret: Any) -> list[tuple[str, datetime | None]]:
    if secret is None:
        return []
    items = secret if isinstance(secret, list) else [secret]
    pairs = [item if isinstance(item, tuple) else (item, None) for item in items]
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            raise ValueError("Webhook: a secret is a str, or a pair of str and aware datetime.")
        if pair[1] is not None and (not isinstance(pair[1], datetime) or pair[1].tzinfo is None):
            raise ValueError("Webhook: the end of a secret must be an aware datetime.")
        _check_key(pair[0])
    if not any(until is None or until > datetime.now(UTC) for _, until in pairs):
        raise ValueError("Webhook: every secret has expired; give one that is valid.")
    return pairs
