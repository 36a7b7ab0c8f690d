"""The admin, and one page that says where it is."""

from django.contrib import admin
from django.urls import path

from .shop.views import home

urlpatterns = [
    path("", home, name="home"),
    path("admin/", admin.site.urls),
]
