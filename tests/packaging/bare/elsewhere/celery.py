import os

from celery import Celery

from delaytasks.celery.bootsteps import install

app = Celery("elsewhere", broker=os.environ.get("BARE_BROKER_URL", "memory://"))
install(app)
