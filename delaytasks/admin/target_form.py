"""Form fields for the target to which a topic's jobs are forwarded, and a description of a stored target in a line."""

from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf, formatting, handlers
from ..forwarding.stored import targets as stored_targets
from ..forwarding.stored.targets import BadTarget

KINDS = {
    "kafka": gettext_lazy("Kafka"),
    "amqp": gettext_lazy("RabbitMQ (AMQP)"),
    "webhook": gettext_lazy("webhook"),
    "celery": gettext_lazy("Celery task"),
}
FORMATS = {
    "cloudevents": gettext_lazy("CloudEvent as JSON"),
    "cloudevents-binary": gettext_lazy("CloudEvent in binary mode: the body, with attributes in headers"),
    "json": gettext_lazy("the body alone"),
}
KEYS = {"key": gettext_lazy("the key of the job"), "topic": gettext_lazy("the topic"), "id": gettext_lazy("the id")}
# Labels of a target's fields, on the form and in the description.
LABELS = {
    "topic": gettext_lazy("topic of Kafka"), "key": gettext_lazy("key of the message"),
    "broker": gettext_lazy("broker"), "exchange": gettext_lazy("exchange"),
    "routing_key": gettext_lazy("routing key"), "url": gettext_lazy("URL"), "settings": gettext_lazy("settings"),
    "task": gettext_lazy("task"), "queue": gettext_lazy("queue"), "format": gettext_lazy("format"),
    "source": gettext_lazy("source"), "timeout": gettext_lazy("timeout in seconds"),
}  # fmt: skip
# Form field -> (kind of target that has it, its name in the stored target). Kind "": all kinds have it.
FIELDS = {
    "target_kind": ("", "kind"),
    **{f"{kind}_{name}": (kind, name) for kind, names in stored_targets.FIELDS.items() for name in names},
    **{f"target_{name}": ("", name) for name in ("format", "source", "timeout")},
}
NO_BROKER = gettext_lazy("The settings (BROKERS) have no broker %(value)s of this kind.")
CHANGED_MEANWHILE = gettext_lazy(
    "The target that is stored now is of another kind: reload the page, and change it again."
)
MESSAGES = {  # BadTarget.code -> message; for other codes, the error's own text is shown
    "missing": gettext_lazy("This field is required."),
    "broker": NO_BROKER,
    "settings": gettext_lazy("The settings (WEBHOOKS) have no %(value)s."),
    "library": gettext_lazy("%(library)s is not installed here: pip install 'delaytasks[%(extra)s]'."),
    "syntax": gettext_lazy("Enter a URL with a host, without spaces and without #."),
    "credentials": gettext_lazy(
        "The URL contains a user, a password or a token. "
        "Put the secret into the settings (WEBHOOKS) and choose its name."
    ),
    "scheme": gettext_lazy("The URL must begin with https://."),
    "private": gettext_lazy("This host is not public, and the settings do not allow it: %(message)s"),
}


def text_field(name: str, help_text: Any = "", **options: Any) -> forms.CharField:
    widget = forms.TextInput(attrs={"class": "vTextField"})
    return forms.CharField(label=capfirst(LABELS[name]), required=False, help_text=help_text, widget=widget, **options)


def choice_field(name: str, help_text: Any = "", error: Any = None, **options: Any) -> forms.ChoiceField:
    messages = {} if error is None else {"invalid_choice": error}
    label = options.pop("label", LABELS.get(name))
    return forms.ChoiceField(
        label=capfirst(label), required=False, help_text=help_text, error_messages=messages, **options
    )


class TargetForm(forms.ModelForm):
    """The form fields for a topic's target. If one of them changes, the whole target is checked and stored."""

    target_kind = choice_field(
        "kind", gettext_lazy("where a worker sends the jobs when they are due; a topic has a handler or a target"),
        label=gettext_lazy("target"), choices=[("", gettext_lazy("none")), *KINDS.items()],
    )  # fmt: skip
    kafka_topic = text_field("topic", max_length=249)
    kafka_key = choice_field("key", choices=[("", gettext_lazy("none")), *KEYS.items()])
    kafka_broker = choice_field("broker", gettext_lazy("a name in the settings (BROKERS)"), NO_BROKER)
    amqp_exchange = text_field(
        "exchange", gettext_lazy("empty: the routing key is the name of a queue"), max_length=255
    )
    amqp_routing_key = text_field(
        "routing_key", gettext_lazy("may contain {topic}, {key} and {id} of the job"), max_length=1000
    )
    amqp_broker = choice_field("broker", gettext_lazy("a name in the settings (BROKERS)"), NO_BROKER)
    webhook_url = text_field(
        "url", gettext_lazy("https, of a public host, without user, password or token"), max_length=2000
    )
    webhook_settings = choice_field(
        "settings", gettext_lazy("the name of a secret in the settings (WEBHOOKS); empty: not signed"),
        MESSAGES["settings"],
    )  # fmt: skip
    celery_task = text_field("task", gettext_lazy("name of the task, such as shop.tasks.close"), max_length=255)
    celery_queue = text_field("queue", gettext_lazy("empty: the queue of the Celery task"), max_length=255)
    target_format = choice_field(
        "format", gettext_lazy("default: the body alone for a Celery task, a CloudEvent for all others"),
        choices=[("", gettext_lazy("default")), *FORMATS.items()],
    )  # fmt: skip
    target_source = text_field("source", gettext_lazy("source of the CloudEvents: a URI or a path"), max_length=500)
    target_timeout = forms.FloatField(
        label=capfirst(LABELS["timeout"]), required=False, min_value=0.1, max_value=3600,
        help_text=gettext_lazy("longest wait for the target's confirmation; the TTR of the job limits it, too"),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "target_kind" not in self.fields:  # the user may not change it
            return
        stored = dict(self.instance.target) if isinstance(self.instance.target, Mapping) else {}
        defaults = {"source": stored_targets.DEFAULT_SOURCE, "timeout": stored_targets.DEFAULT_TIMEOUT}
        for field, (kind, name) in FIELDS.items():
            applies = kind in ("", stored.get("kind"))
            self.initial[field] = (defaults | stored).get(name, "") if applies else defaults.get(name, "")
        for kind in ("kafka", "amqp"):
            self._offer(f"{kind}_broker", stored_targets.broker_names(kind))
        self._offer("webhook_settings", conf.get().webhooks)

    def _offer(self, field: str, names: Iterable[str]) -> None:
        """Set the choices of a field: what the settings have, and what is stored although they no longer have it."""
        own = self.initial[field]
        names = sorted({*names, *([own] if own else [])})
        self.fields[field].choices = [("", "---------"), *((name, name) for name in names)]  # type: ignore[attr-defined]

    @property
    def target_is_changed(self) -> bool:
        return not FIELDS.keys().isdisjoint(self.changed_data)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        changed = {FIELDS[field][0] for field in FIELDS.keys() & self.changed_data}
        if "target_kind" not in self.changed_data and changed - {"", cleaned.get("target_kind")}:
            self.add_error("target_kind", CHANGED_MEANWHILE)
        if self.target_is_changed and FIELDS.keys().isdisjoint(self.errors):
            target = self._checked_target(cleaned)
            if FIELDS.keys().isdisjoint(self.errors):
                self.instance.target = target
        return cleaned

    def _checked_target(self, cleaned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the target to store; None: the jobs are not forwarded. Adds errors to the form."""
        kind, topic = cleaned["target_kind"], self.instance.name or cleaned.get("name", "")
        if not kind:
            return None
        values = {name: cleaned[field] for field, (of, name) in FIELDS.items() if of in ("", kind)}
        values["format"] = values["format"] or stored_targets.default_format(kind)
        values["source"] = values["source"] or stored_targets.DEFAULT_SOURCE
        seconds = values["timeout"] or stored_targets.DEFAULT_TIMEOUT
        values["timeout"] = int(seconds) if seconds == int(seconds) else seconds
        handler = handlers.find(topic)
        if handler is not None:
            text = _("This topic is handled in code, by %(where)s. Remove that code first.")
            self.add_error("target_kind", ValidationError(text, params={"where": handler.name}))
        try:
            stored_targets.check_new(values)
        except BadTarget as error:
            self._report(kind, error)
        return values

    def _report(self, kind: str, error: BadTarget) -> None:
        field = f"target_{error.field}" if f"target_{error.field}" in FIELDS else f"{kind}_{error.field}"
        text = MESSAGES.get(error.code, _("This target cannot be used: %(message)s"))
        self.add_error(field, ValidationError(text, params=error.details))


def short_description(stored: Any) -> str:
    """Return the kind of a stored target and where it leads to: "Kafka orders"."""
    if not _is_readable(stored):
        return description(stored)
    where = (stored.get(name) for name in stored_targets.FIELDS[stored["kind"]])
    return f"{KINDS[stored['kind']]} {next(filter(None, where), '')}"


def _is_readable(stored: Any) -> bool:
    return isinstance(stored, Mapping) and isinstance(stored.get("kind"), str) and stored["kind"] in KINDS


def description(stored: Any) -> str:
    """Return a stored target as one line of text, in the language of the user; "" for None."""
    if not _is_readable(stored):
        return "" if stored is None else _("not readable: %(value)s") % {"value": repr(stored)[:200]}
    names = [*stored_targets.FIELDS[stored["kind"]], "format", "source", "timeout"]
    words: dict[str, Mapping[str, Any]] = {"format": FORMATS, "key": KEYS}
    parts = [
        f"{LABELS[name]}: {words.get(name, {}).get(stored[name], stored[name])}" for name in names if stored.get(name)
    ]
    return f"{KINDS[stored['kind']]}; {formatting.join(parts)}"
