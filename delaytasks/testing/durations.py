"""Durations in one unit, for readable tests."""

from datetime import timedelta


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def days(number: float) -> timedelta:
    return timedelta(days=number)
