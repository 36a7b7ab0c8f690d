"""The stand-in for the payment gateway, and its client."""

import json
import urllib.error
import urllib.request

import pytest

from project.shop import gateway
from project.shop.gateway import FAILED, HANG, PENDING, PLANS, SETTLED

from .conftest import reference_with


def test_the_answers_follow_from_the_reference_alone(stand_in):
    reference = reference_with((PENDING, PENDING, SETTLED))

    assert [gateway.ask(reference) for _ in range(4)] == [PENDING, PENDING, SETTLED, SETTLED]


def test_every_plan_occurs_among_the_references():
    assert {gateway.plan_of(f"R-{number}") for number in range(500)} == set(PLANS)


def test_a_refused_refund_stays_refused(stand_in):
    reference = reference_with((PENDING, FAILED))

    assert [gateway.ask(reference) for _ in range(3)] == [PENDING, FAILED, FAILED]


def test_a_hanging_gateway_costs_the_timeout_and_no_more(stand_in, settings):
    settings.SHOP_GATEWAY_TIMEOUT_SECONDS = 0.05
    reference = reference_with((HANG, PENDING, SETTLED))

    assert gateway.ask(reference) == PENDING
    settings.SHOP_GATEWAY_TIMEOUT_SECONDS = 5
    assert [gateway.ask(reference) for _ in range(2)] == [PENDING, SETTLED]


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b"{}", b'{"state": 7}', b'{"state": "maybe"}', b"\xff"])
def test_nonsense_is_no_decision(stand_in, monkeypatch, content):
    def answer(self, status, _):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    monkeypatch.setattr(gateway.RefundRequest, "answer", answer)

    assert gateway.ask("R-1") == PENDING


def test_a_reference_may_hold_any_character(stand_in):
    assert gateway.ask("R/1 ?#ü") in (PENDING, SETTLED)
    assert stand_in.next_answer("R/1 ?#ü") == gateway.plan_of("R/1 ?#ü")[min(1, len(gateway.plan_of("R/1 ?#ü")) - 1)]


def test_what_is_no_refund_is_not_found(stand_in):
    with pytest.raises(urllib.error.HTTPError) as refusal:
        gateway._opener.open(f"{stand_in.url}/elsewhere", timeout=5)
    with refusal.value:
        assert refusal.value.code == 404


def test_it_says_that_it_is_up(stand_in):
    with gateway._opener.open(f"{stand_in.url}/health", timeout=5) as answer:
        assert json.load(answer) == {"ok": True}
