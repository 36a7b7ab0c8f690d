"""Each page has an icon, also those without a link to one."""

from django.contrib.staticfiles import finders


def test_the_icon_that_browsers_ask_for_exists(client):
    answer = client.get("/favicon.ico")
    assert (answer.status_code, answer["Location"]) == (302, "/static/shop/icon.svg")
    assert finders.find("shop/icon.svg")
