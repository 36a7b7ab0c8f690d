"""What handlers, faults and the checker have to agree on."""

from . import manners

TTR_SECONDS = 4  # of every topic here: what a killed process held is free again so soon
MOST_ATTEMPTS = 100  # of every topic here, so that no fault uses them up; but for these:
LEAVING, BODY = "torture.leaving", "torture.body"  # topics of app/deployed.py
BODY_ATTEMPTS = 3
FEWER_ATTEMPTS = {BODY: BODY_ATTEMPTS} | {manner.topic: manners.ATTEMPTS for manner in manners.MANNERS.values()}


def most_attempts(topic: str) -> int:
    return FEWER_ATTEMPTS.get(topic, MOST_ATTEMPTS)
