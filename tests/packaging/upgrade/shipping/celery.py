from celery import Celery

from delaytasks.bootsteps import install

app = Celery("shipping")
app.config_from_object("django.conf:settings", namespace="CELERY")
install(app)
