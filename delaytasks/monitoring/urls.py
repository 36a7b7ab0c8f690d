"""URLs of the probes. Include them under any prefix: path("", include("delaytasks.monitoring.urls"))."""

from django.urls import path

from . import views

app_name = "delaytasks_monitoring"
urlpatterns = [
    path("livez", views.livez, name="livez"),
    path("readyz", views.readyz, name="readyz"),
]
