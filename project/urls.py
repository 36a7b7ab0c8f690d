"""The storefront, the admin, the API."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("project.shop.urls")),
    path("admin/", admin.site.urls),
    path("api/", include("delaytasks.api.urls")),
]
