"""An inbox in a process of its own, which stops for ever between the commit and the confirmation to the broker.

argv   JSON: "database", "brokers", "name" and "options" of the inbox
"""

import json
import os
import signal
import sys

from django.conf import settings

given = json.loads(sys.argv[1])
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
settings.DATABASES["default"].update(given["database"])
settings.DELAYTASKS |= {"BROKERS": given["brokers"], "INBOXES": {given["name"]: given["options"]}}
settings.DELAYTASKS |= {"TOPICS": {"shop.close": {}}}

import django  # noqa: E402

django.setup()

from django.core.management import call_command  # noqa: E402

from delaytasks.inbox import kafka  # noqa: E402


def wait_for_the_end(source: object) -> None:
    print("committed", flush=True)
    signal.pause()


if given["hang"]:
    kafka.KafkaSource.confirm = wait_for_the_end  # type: ignore[method-assign,assignment]
call_command("delaytasks", "inbox", given["name"], "--json")
