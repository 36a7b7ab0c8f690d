"""Values shared by handlers, faults and the checker."""

from . import misbehaviours

TTR_SECONDS = 4  # of all topics here, so that jobs of a killed process are soon free again
MOST_ATTEMPTS = 100  # of all topics here, so that no fault uses them up; the exceptions are in FEWER_ATTEMPTS
LEAVING, BODY = "torture.leaving", "torture.body"  # topics of app/deployed.py
BODY_ATTEMPTS = 3
CROWD = "torture.crowd"  # the topic of the jobs that wait behind a slow or deadly one
CROWD_ATTEMPTS = 3
TICK = "load.tick"  # the topic of the schedules of `failover`
FORWARDED = "torture.to."  # prefix of the topics that are forwarded
PEERS = ("webhook", "amqp", "celery", "kafka")  # targets that record what they confirm, too; the rest of the topic
FORWARDED_TTR_SECONDS = 8
TIMEOUT_SECONDS = 2.0  # of all targets
SLOW_SECONDS, LATE_SECONDS = 0.8, 3.0  # of a confirmation: before and after the sender has given up
QUEUE_ARGUMENTS = {"x-max-length": 5, "x-overflow": "reject-publish"}  # of the queues of a RabbitMQ
FEWER_ATTEMPTS = {BODY: BODY_ATTEMPTS, CROWD: CROWD_ATTEMPTS} | {
    manner.topic: misbehaviours.ATTEMPTS for manner in misbehaviours.MANNERS.values()
}


def most_attempts(topic: str) -> int:
    return FEWER_ATTEMPTS.get(topic, MOST_ATTEMPTS)
