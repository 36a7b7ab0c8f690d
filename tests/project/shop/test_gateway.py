"""The fake payment gateway and the client."""

import json
import urllib.error
import urllib.request

import pytest

from project.shop import gateway
from project.shop.gateway import FAILED, HANG, PENDING, PLANS, SETTLED

from ..conftest import reference_with


def test_the_responses_depend_on_the_reference_only(fake_gateway):
    reference = reference_with((PENDING, PENDING, SETTLED))

    assert [gateway.get_refund_state(reference) for _ in range(4)] == [PENDING, PENDING, SETTLED, SETTLED]


def test_every_plan_occurs_among_the_references():
    assert {gateway.plan_for(f"R-{number}") for number in range(500)} == set(PLANS)


def test_a_declined_refund_stays_declined(fake_gateway):
    reference = reference_with((PENDING, FAILED))

    assert [gateway.get_refund_state(reference) for _ in range(3)] == [PENDING, FAILED, FAILED]


def test_a_hanging_gateway_costs_only_the_timeout(fake_gateway, settings):
    settings.SHOP_GATEWAY_TIMEOUT_SECONDS = 0.05
    reference = reference_with((HANG, PENDING, SETTLED))

    assert gateway.get_refund_state(reference) == PENDING
    settings.SHOP_GATEWAY_TIMEOUT_SECONDS = 5
    assert [gateway.get_refund_state(reference) for _ in range(2)] == [PENDING, SETTLED]


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b"{}", b'{"state": 7}', b'{"state": "maybe"}', b"\xff"])
def test_an_invalid_response_counts_as_pending(fake_gateway, monkeypatch, content):
    def respond(self, status, _):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    monkeypatch.setattr(gateway.RefundRequest, "respond", respond)

    assert gateway.get_refund_state("R-1") == PENDING


def test_a_reference_may_contain_any_character(fake_gateway):
    assert gateway.get_refund_state("R/1 ?#ü") in (PENDING, SETTLED)
    assert (
        fake_gateway.next_state("R/1 ?#ü") == gateway.plan_for("R/1 ?#ü")[min(1, len(gateway.plan_for("R/1 ?#ü")) - 1)]
    )


def test_an_unknown_path_is_not_found(fake_gateway):
    with pytest.raises(urllib.error.HTTPError) as raised:
        gateway._opener.open(f"{fake_gateway.url}/elsewhere", timeout=5)
    with raised.value:
        assert raised.value.code == 404


def test_the_health_check_responds(fake_gateway):
    with gateway._opener.open(f"{fake_gateway.url}/health", timeout=5) as response:
        assert json.load(response) == {"ok": True}
