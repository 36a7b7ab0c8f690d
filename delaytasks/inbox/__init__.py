"""Take "schedule" and "cancel" messages from a topic of Kafka or a queue of AMQP.

    manage.py delaytasks inbox NAME

`declarations` says which inboxes there are, `messages` what they take, `store` writes it, `consumer` is the loop.
Importing this package opens no connection and loads no models.
"""

from .declarations import Inbox, declare

__all__ = ["Inbox", "declare"]
