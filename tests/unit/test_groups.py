"""Tests that must not run beside each other are kept together."""

import os

import pytest


@pytest.mark.xdist_group("kept together")
def test_a_group_is_known_to_who_deals_out_the_tests(request: pytest.FixtureRequest) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@kept together")
