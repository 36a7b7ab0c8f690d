"""A Celery app of another project: its only task appends its id and its argument to a file."""

import json
import os

import celery

app = celery.Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    task_default_queue=os.environ["SHOP_QUEUE"], broker_connection_retry_on_startup=True, worker_send_task_events=False
)


@app.task(name="shop.tasks.close", bind=True)
def close(self, order):
    with open(os.environ["SHOP_CLOSED"], "a") as file:
        file.write(json.dumps([self.request.id, order]) + "\n")
