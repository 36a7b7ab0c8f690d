"""Take "schedule" and "cancel" messages from a topic of Kafka or a queue of AMQP.

    manage.py delaytasks inbox NAME

`declarations` says which inboxes there are, `formats` reads their messages, `messages` validates them, `store` writes
the jobs, `consumer` is the loop.
Importing this package opens no connection and loads no models.
"""

from .declarations import Inbox, declare

__all__ = ["Inbox", "declare"]
