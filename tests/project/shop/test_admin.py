"""The shop's pages in the admin."""

import pytest

from project.shop.services import pay_order, request_refund


@pytest.fixture
def refunded_order(order):
    pay_order(order.pk)
    request_refund(order.pk)
    return order


@pytest.mark.parametrize("model", ["customer", "product", "order", "payment", "refund"])
def test_staff_can_view_and_search_every_list(admin_client, refunded_order, model):
    assert admin_client.get(f"/admin/shop/{model}/").status_code == 200
    if model != "payment":
        assert admin_client.get(f"/admin/shop/{model}/?q=1").status_code == 200


def test_an_order_is_shown_with_its_lines_and_cannot_be_edited(admin_client, refunded_order):
    page = admin_client.get(f"/admin/shop/order/{refunded_order.pk}/change/")

    assert page.status_code == 200
    assert b"tea" in page.content
    assert admin_client.post(f"/admin/shop/order/{refunded_order.pk}/change/", {"state": "closed"}).status_code == 403
    assert admin_client.get("/admin/shop/order/add/").status_code == 403
