"""URLs of the storefront, the language switch, the admin, the API and the probes."""

from django.conf import settings
from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from delaytasks.monitoring.views import metrics


class FaviconView(RedirectView):
    """Redirect to the icon. Browsers request this path for pages that do not link an icon, such as the admin's."""

    def get_redirect_url(self, *args: object, **kwargs: object) -> str:
        return static("shop/icon.svg")


urlpatterns = [
    path("favicon.ico", FaviconView.as_view()),
    path("", include("project.shop.urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
    path("api/", include("delaytasks.api.urls")),
    path("", include("delaytasks.monitoring.urls")),
]

if settings.DELAYTASKS.get("METRICS_PORT"):
    urlpatterns += [path("metrics", metrics)]
