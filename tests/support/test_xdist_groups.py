"""Tests of one xdist group run in one process."""

import os

import pytest


@pytest.mark.xdist_group("kept together")
def test_the_scheduler_of_xdist_knows_the_group(request: pytest.FixtureRequest) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@kept together")
