"""What is hidden in a job's body, rule by rule, and what is not."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest

from delaytasks import conf
from delaytasks.redaction import HIDDEN, redacted

SECRET = "hunter2-7f3a"
WORDS = conf.Settings().redact


def shown(value: Any) -> Any:
    return redacted(value, WORDS)


# The names of keys


@pytest.mark.parametrize(
    "name",
    [
        "pwd", "PWD", "db_pwd", "userPwd", "pin", "PIN", "pin_code", "userPin", "userPIN", "PINCode", "pin2", "pins",
        "otp", "otpCode", "X-OTP", "auth", "X-Auth", "basicAuth", "authHeader", "oauth", "oauth2", "jwt", "JWT",
        "idJwt", "session", "sessionid", "session_key", "SESSION", "signature", "x-signature", "ssn", "customerSSN",
        "dsn", "DATABASE_DSN", "sentryDsn", "account_number", "accountNumber", "account-number", "bankAccountNumber",
        "password", "passwords", "passcode", "refreshtokens", "apikey", "cvv", "cvc2", "iban", "ＰＩＮ",
    ],
)  # fmt: skip
def test_the_value_of_a_secret_name_is_hidden(name: str) -> None:
    assert shown({name: SECRET}) == {name: HIDDEN}
    assert shown([{"deep": {name: [SECRET, {"any": 1}]}}]) == [{"deep": {name: HIDDEN}}]


@pytest.mark.parametrize(
    "name",
    [
        "shipping", "author", "authors", "authority", "spinning", "pinned", "opinion", "hotplate", "footprint",
        "class_name", "classname", "lessons", "wordsnumber", "fields", "account", "number", "accounts", "caliban",
        "key", "sort_key", "card", "code", "laptop", "spin", "pint", "designation", "compass",
    ],
)  # fmt: skip
def test_the_value_of_an_innocent_name_is_shown(name: str) -> None:
    assert shown({name: "shown"}) == {name: "shown"}


@pytest.mark.parametrize("empty", [None, "", [], {}])
def test_an_empty_value_is_shown(empty: Any) -> None:
    assert shown({"password": empty}) == {"password": empty}


@pytest.mark.parametrize("value", [0, False, 1234, 0.5, [0]])
def test_a_value_that_is_no_text_is_hidden_too(value: Any) -> None:
    assert shown({"pin": value}) == {"pin": HIDDEN}


# Pairs


@pytest.mark.parametrize(
    "pair",
    [
        {"name": "password", "value": SECRET},
        {"key": "X-Api-Key", "value": SECRET, "enabled": True},
        {"Name": "PIN", "Value": 1234},
        {"header": "Authorization", "values": [SECRET]},
        {"field": "otp", "content": SECRET},
        {"k": "password", "v": SECRET},
        {"K": "X-Api-Key", "V": 1234},
        ["Authorization", SECRET],
        ["pwd", {"is": SECRET}],
    ],
    ids=str,
)
def test_the_value_of_a_pair_is_hidden(pair: Any) -> None:
    text = json.dumps(shown([pair]), ensure_ascii=False)
    assert HIDDEN in text
    assert SECRET not in text
    assert "1234" not in text


def test_the_word_after_an_option_in_the_list_of_a_commands_words_is_hidden() -> None:
    assert shown(["mysql", "--password", SECRET, "-u", "anna"]) == ["mysql", "--password", HIDDEN, "-u", "anna"]
    assert shown(["login", "--api-key", [SECRET], 3]) == ["login", "--api-key", HIDDEN, 3]
    innocent = ["docker", "login", "--password-stdin", "--verbose", "--author", "anna", f"--password={HIDDEN}", "shop"]
    assert shown(innocent) == innocent


@pytest.mark.parametrize("empty", [[], {"items": []}, [[]], '{"items": []}'])
def test_an_empty_list_is_shown(empty: Any) -> None:
    assert shown(empty) == empty
    text = json.dumps({"items": [], "name": "password", "value": SECRET})
    assert SECRET not in shown(text)


def test_the_value_of_an_innocent_pair_is_shown() -> None:
    body = [{"name": "colour", "value": "red"}, ["size", "L"], ["a", "b", "c"], {"name": "Anna", "text": "hello"}]
    assert shown(body) == body


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"user=anna&password={SECRET}&x=1", f"user=anna&password={HIDDEN}&x=1"),
        (f"host=db password='{SECRET} x' user=u", f"host=db password='{HIDDEN}' user=u"),
        (f"Authorization: Bearer {SECRET}", f"Authorization: {HIDDEN}"),
        (f"pin: {SECRET}, name: Anna", f"pin: {HIDDEN}, name: Anna"),
        (f"https://host/pay?order=7&token={SECRET}#top", f"https://host/pay?order=7&token={HIDDEN}"),
        (f"next=https://host/?token={SECRET}", f"next=https://host/?token={HIDDEN}"),
        (f'{{"password": "{SECRET}", broken', f'{{"password": "{HIDDEN}", broken'),
        (f'{{"password": "a\\"{SECRET}", broken', f'{{"password": "{HIDDEN}", broken'),
        (f'password="it\'s {SECRET}" user=u', f'password="{HIDDEN}" user=u'),
        (f"password=a\\{SECRET} user=u", f"password={HIDDEN} user=u"),
        (f"mysql --password {SECRET} -u anna", f"mysql --password {HIDDEN} -u anna"),
        (f"mysql --password={SECRET} -u anna", f"mysql --password={HIDDEN} -u anna"),
        (f'curl --auth-token  "{SECRET} x" url', f'curl --auth-token  "{HIDDEN}" url'),
        (f"<user>anna</user><password>{SECRET} x</password>", f"<user>anna</user><password>{HIDDEN}</password>"),
        (f'<s:PIN type="text">\n{SECRET}</s:PIN >', f'<s:PIN type="text">{HIDDEN}</s:PIN >'),
        (f"<pin><![CDATA[1<{SECRET}]]></pin><b>x</b>", f"<pin>{HIDDEN}</pin><b>x</b>"),
    ],
)
def test_the_value_of_a_pair_in_a_text_is_hidden(text: str, seen: str) -> None:
    assert shown({"note": text}) == {"note": seen}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"Authorization: Token {SECRET}\nHost: x", f"Authorization: {HIDDEN}\nHost: x"),
        (f"Host: x\r\nCookie: a=1; b={SECRET}\r\nAccept: */*", f"Host: x\r\nCookie: {HIDDEN}\r\nAccept: */*"),
        (f'Set-Cookie: id="{SECRET}"; Secure', f"Set-Cookie: {HIDDEN}"),
        (f"curl -H 'Cookie: a=\"1\"; b={SECRET}' url", f"curl -H 'Cookie: {HIDDEN}' url"),
        (f'curl -H "Authorization: Token \\"{SECRET}\\"" url', f'curl -H "Authorization: {HIDDEN}" url'),
    ],
)
def test_the_value_of_a_header_with_credentials_is_hidden_as_a_whole(text: str, seen: str) -> None:
    assert shown({"note": text}) == {"note": seen}


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (SECRET.encode(), f"b'{HIDDEN}'"),
        ([SECRET, {"any": (1, "a)")}], HIDDEN),
        ((SECRET, SECRET), HIDDEN),
        ({"is": SECRET, "or": "it's"}, HIDDEN),
        (Decimal("1234"), HIDDEN),
    ],
    ids=str,
)
def test_the_value_of_a_pair_in_a_python_dict_is_hidden_whatever_its_type(value: Any, seen: str) -> None:
    text = f"KeyError: {{'pin': {value!r}, 'user': 'anna'}}"
    assert shown([text]) == [f"KeyError: {{'pin': {seen}, 'user': 'anna'}}"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("pin=a1(b c)d;user=u", f"pin={HIDDEN};user=u"),
        (f"pin=[1, '{SECRET}\nuser=u", f"pin={HIDDEN}\nuser=u"),
        (f"pin=(1, '{SECRET}", f"pin={HIDDEN}"),
        (f'x\n  "pin": [\n    "{SECRET}"\n  ],\n', f'x\n  "pin": {HIDDEN}\n  ],\n'),
    ],
)
def test_a_value_with_brackets_ends_where_they_are_closed_or_with_its_lines(text: str, seen: str) -> None:
    assert shown({"note": text}) == {"note": seen}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"pin: |\n  {SECRET}\n\n  {SECRET}\nuser: anna", f"pin: {HIDDEN}\nuser: anna"),
        (f"- pin: >-\n    {SECRET}\n  user: anna", f"- pin: {HIDDEN}\n  user: anna"),
        (f"pin:\n        - {SECRET}\n        - {SECRET}\nuser: anna", f"pin:\n   {HIDDEN}\nuser: anna"),
        (f"pin:\n- {SECRET}\n- {SECRET}\nuser: anna", f"pin:\n{HIDDEN}\nuser: anna"),
        (f"Your pin:\n\n{SECRET}\n\nRegards", f"Your pin:\n\n{HIDDEN}\n\nRegards"),
    ],
)
def test_a_value_in_the_lines_after_its_name_is_hidden(text: str, seen: str) -> None:
    assert shown({"note": text}) == {"note": seen}


# Credentials by their form


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (f"postgres://anna:{SECRET}@db:5432/shop", f"postgres://{HIDDEN}@db:5432/shop"),
        (f"redis://:{SECRET}@cache/0", f"redis://{HIDDEN}@cache/0"),
        (f"https://{SECRET}@git.example/x", f"https://{HIDDEN}@git.example/x"),
        (f"amqp://u:p/{SECRET}@mq//", f"amqp://{HIDDEN}@mq//"),
        (f"see https://u:p@{SECRET}@host/ now", f"see https://{HIDDEN}@host/ now"),
        ("redis://:12345@cache/0", f"redis://{HIDDEN}@cache/0"),
        ("postgres://anna:1234@db", f"postgres://{HIDDEN}@db"),
        (f"anna:{SECRET}@tcp(db:3306)/shop", f"{HIDDEN}@tcp(db:3306)/shop"),
        (f"DB=anna:a@b:{SECRET}@unix(/run/db) x", f"DB={HIDDEN}@unix(/run/db) x"),
    ],
)
def test_credentials_in_a_url_are_hidden(url: str, seen: str) -> None:
    assert shown([url]) == [seen]


def test_secrets_in_the_name_of_a_key_are_hidden() -> None:
    assert shown({f"https://anna:{SECRET}@host/": 1, "other key": 2}) == {f"https://{HIDDEN}@host/": 1, "other key": 2}
    assert shown({f"password={SECRET}": 1}) == {f"password={HIDDEN}": HIDDEN}


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8000/users/anna@example.com", "https://example.com/a?b=c&d=e", "mailto:anna@example.com",
        "10:30 to 12:00", "a=b", "The author: Anna", "shipping: express", "https://host:443", "http://[::1]:80/x@y",
        "run --verbose --pin --name x", "--author Anna", "<author>Anna</author>", "<pin/> <b>x</b>", "a:b@tcp db",
        "<password></password>", "<b><![CDATA[pin]]></b>", "10:30@tcp", "[not JSON", '"quoted" words',
        "basic price", "{}", "[1, 2]",
    ],
)  # fmt: skip
def test_innocent_texts_are_shown(text: str) -> None:
    assert shown({"note": text}) == {"note": text}


def test_a_json_web_token_is_hidden_under_any_name() -> None:
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
    assert shown({"note": f"sent {jwt} twice"}) == {"note": f"sent {HIDDEN} twice"}


def test_a_json_web_token_is_hidden_after_a_hyphen_and_with_hyphens_inside() -> None:
    jwt = "eyJhbGci-eyJhbGci.eyJzdWIi-eyJzdWIi.c2ln-bmF0dXJl"
    assert shown({"note": f"session-{jwt}, {jwt}"}) == {"note": f"session-{HIDDEN}, {HIDDEN}"}


def test_what_follows_bearer_in_a_text_is_hidden() -> None:
    assert shown(["curl -H 'Bearer abcdefgh.12345678'"]) == [f"curl -H 'Bearer {HIDDEN}'"]


# JSON inside a string


def test_json_inside_a_string_is_redacted_at_any_depth() -> None:
    body = {"payload": json.dumps({"user": "anna", "inner": json.dumps([{"otp": SECRET}])})}
    text = json.dumps(shown(body))
    assert SECRET not in text
    assert "anna" in text


@pytest.mark.parametrize("times", [1, 2, 3])
def test_json_inside_a_string_is_redacted_after_other_words(times: int) -> None:
    inner = json.dumps({"password": f"{SECRET} 2", "user": "anna"})
    for _ in range(times):
        inner = json.dumps(inner)
    text = str(shown([f"sent: {inner}"]))
    assert SECRET not in text
    assert "anna" in text


def test_json_inside_a_string_without_secrets_keeps_its_form() -> None:
    body = {"payload": '{ "user":"anna" }'}
    assert shown(body) == body


@pytest.mark.parametrize("last", ['""', "null", "[]"])
def test_all_values_of_a_repeated_key_in_json_inside_a_string_are_hidden(last: str) -> None:
    text = f'{{"password": "{SECRET}", "password": {last}, "user": "anna"}}'
    assert shown([text]) == [f'{{"password": "{HIDDEN}", "user": "anna"}}']
    innocent = '{"user": "anna", "user": ""}'
    assert shown([innocent]) == [innocent]


def test_json_that_nests_too_deep_is_hidden() -> None:
    assert shown({"payload": "[" * 200_000 + "]" * 200_000}) == {"payload": HIDDEN}


def test_no_words_hide_nothing() -> None:
    body = {"password": SECRET, "url": f"https://u:{SECRET}@host/"}
    assert redacted(body, ()) == body


@pytest.mark.parametrize(
    "text",
    [
        "://a:x" * 11_000,
        "a=" * 32_000,
        "a:" * 32_000,
        "bearer " * 9_000,
        "eyJ" * 21_000,
        "eyJ-----" * 8_000,
        "eyJ-----." * 7_000,
        '"a":"' * 13_000,
        "=" * 65_000,
        'pin="' * 13_000,
        'pin="' + "\\" * 65_000,
        "--pin " * 11_000,
        "--pin" * 13_000,
        "--pin-" * 10_000 + " x",
        "<pin>" * 13_000,
        "<pin " * 13_000,
        "<pin>" + "x" * 65_000,
        "<pin x" + " " * 65_000,
        "=a:" * 21_000 + "@tcp(",
        " a:" * 21_000 + "@tcp(",
        "a:@tcp(" * 9_000,
        "x" * 65_000 + "@tcp(",
        "<pin><!" * 9_000,
        "<pin><![CDATA[" * 4_500,
        "pin=[" * 13_000,
        "pin=[\n" * 11_000,
        "pin=[] " * 9_000,
        'pin=["\n' * 9_000,
        "pin:\n\n\n" * 9_000,
        "pin: |\n" * 9_000,
        "'Cookie: " * 7_000,
        "'Cookie:\n" * 7_000,
        "pin" + "[" * 300_000,
    ],
    ids=range(33),
)
def test_a_hostile_text_takes_less_than_a_second_of_cpu(text: str) -> None:
    """A pattern with quadratic cost takes many. CPU time, so that a busy machine makes no difference."""
    began = time.process_time()
    shown({"note": text})
    assert time.process_time() - began < 1


def test_names_without_a_secret_cost_little_more_than_reading_them() -> None:
    """Texts of 64 KiB with 30,000 names took 90 ms each, and a page of jobs shows 200 of them."""
    began = time.process_time()
    for _ in range(10):
        shown({"note": "a=" * 32_000})
    assert time.process_time() - began < 0.4
