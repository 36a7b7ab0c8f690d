"""Jobs that a declaration makes carry the context of the transaction that changed the row."""

import pytest

from delaytasks import timeout
from delaytasks.models import Job

from ..support.spans import Spans, traceparent
from .app.models import Order
from .conftest import HALF_HOUR, START

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.on_both,
    pytest.mark.usefixtures("automatic", "db_clock"),
]


@pytest.fixture
def _declared() -> None:
    timeout(Order, topic="declared.close", on="created_at", after=HALF_HOUR)(lambda order, job: None)


@pytest.mark.usefixtures("_declared")
def test_a_save_that_makes_a_job_has_a_span_whose_context_the_job_carries(spans: Spans) -> None:
    with spans.inside() as checkout:
        order = Order.objects.create(created_at=START)
    span = spans.one("schedule declared.close")
    assert span.parent.span_id == checkout.context.span_id
    assert Job.objects.get().trace_context == traceparent(span)
    order.save()
    assert spans.named("schedule declared.close") == [span], "nothing was to be made"


@pytest.mark.usefixtures("_declared")
def test_without_tracing_the_job_has_no_context() -> None:
    Order.objects.create(created_at=START)
    assert Job.objects.get().trace_context is None
