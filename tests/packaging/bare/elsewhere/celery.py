from celery import Celery

from delaytasks.bootsteps import install

app = Celery("elsewhere", broker="memory://")
install(app)
