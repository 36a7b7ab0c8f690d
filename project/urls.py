"""The storefront, the choice of a language, the admin, the API."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("project.shop.urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
    path("api/", include("delaytasks.api.urls")),
]
