"""URLs of the storefront."""

from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("now/", views.now, name="now"),
    path("orders/", views.place, name="place"),
    path("orders/<int:order_id>/pay/", views.pay, name="pay"),
    path("orders/<int:order_id>/refund/", views.request_refund, name="request_refund"),
]
