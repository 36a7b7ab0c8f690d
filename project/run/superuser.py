"""The superuser that `make run` creates at its first start."""

import secrets
from pathlib import Path

from django.contrib.auth import get_user_model

from .preflight import write_private

USERNAME = "admin"


def ensure_superuser(password_file: Path) -> str:
    """Create the superuser if it does not exist. Return its login and password as a text for the terminal.

    An existing user and its password are never changed.
    """
    users = get_user_model()
    user = users.objects.filter(username=USERNAME).first()
    if user is None:
        write_private(password_file, secrets.token_urlsafe(9))
        user = users.objects.create_superuser(USERNAME, "admin@shop.example", password_file.read_text())
    password = password_file.read_text().strip() if password_file.exists() else ""
    if password and user.check_password(password):
        return f"login: {USERNAME}, password: {password}"
    return f"login: {USERNAME}, with the password you set (manage.py changepassword {USERNAME} sets a new one)"
