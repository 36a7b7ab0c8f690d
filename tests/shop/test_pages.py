"""The shop's part of the admin. Its own pages: test_store.py."""

import pytest

from project.shop.services import ask_refund, pay_order


@pytest.fixture
def sold(order):
    pay_order(order.pk)
    ask_refund(order.pk)
    return order


@pytest.mark.parametrize("model", ["customer", "product", "order", "payment", "refund"])
def test_staff_see_every_list_and_can_search_it(admin_client, sold, model):
    assert admin_client.get(f"/admin/shop/{model}/").status_code == 200
    if model != "payment":
        assert admin_client.get(f"/admin/shop/{model}/?q=1").status_code == 200


def test_an_order_is_shown_with_its_lines_and_cannot_be_edited(admin_client, sold):
    page = admin_client.get(f"/admin/shop/order/{sold.pk}/change/")

    assert page.status_code == 200
    assert b"tea" in page.content
    assert admin_client.post(f"/admin/shop/order/{sold.pk}/change/", {"state": "closed"}).status_code == 403
    assert admin_client.get("/admin/shop/order/add/").status_code == 403
