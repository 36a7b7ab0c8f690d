"""The callers of requests that have waited are looked up again."""

import asyncio
from collections.abc import Callable

import pytest

from delaytasks.api.fast_path import callers


@pytest.mark.django_db(transaction=True)
def test_the_process_keeps_no_secret_of_a_caller_that_it_has_looked_up_again(make_token: Callable[..., str]) -> None:
    secret = make_token()
    assert asyncio.run(callers.find_again(secret)) is not None
    assert secret not in repr(callers._checked_at)
    assert callers._checked_at
