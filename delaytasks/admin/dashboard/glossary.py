"""Short explanations of the technical terms on the board."""

from django.utils.translation import gettext as _
from django.utils.translation import pgettext


def glossary() -> list[tuple[str, str]]:
    """Return (word, meaning) in the order in which the board uses the words."""
    return [
        (_("Job"), _("Something to do at a certain time, such as closing an unpaid order.")),
        (_("Topic"), _("A kind of job. All jobs of a topic are done by the same code.")),
        (pgettext("of jobs", "Due"), _("The time has come at which the job is to begin.")),
        (
            _("Late"),
            _("How long after its due time a job began. p50: half of the jobs; p99: 99 of 100 were not later."),
        ),
        (_("Dead"), _("The job has failed for good. It stays until somebody retries or cancels it.")),
        (_("Paused topics"), _("Their jobs become due and wait until the topic is resumed.")),
        (_("TTR"), _("Time to run: how long one attempt may take before it is stopped.")),
        (_("Mover"), _("The program part that finds due jobs and hands them to workers.")),
        (_("Beat"), _("The program that starts regular maintenance, twice a minute.")),
        (_("Mirror"), _("A copy of the next hour's due times in Redis, for speed. No job is lost without it.")),
        (pgettext("of jobs", "Herd"), _("Many more jobs due at one moment than before and after it.")),
    ]
