"""Take "schedule" and "cancel" messages from a Kafka topic or an AMQP queue.

    manage.py delaytasks inbox NAME

`declarations` declares inboxes, `formats` parses their messages, `messages` validates them, `store` writes the jobs,
`consumer` has the loop. Importing this package opens no connection and loads no models.
"""

from .declarations import Inbox, declare

__all__ = ["Inbox", "declare"]
