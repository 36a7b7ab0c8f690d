"""The staff user that `make run` makes once, so that there is somebody to log in as."""

import secrets
from pathlib import Path

from django.contrib.auth import get_user_model

from .preflight import write_private

STAFF = "admin"


def make_staff(password_file: Path) -> str:
    """What to log in with, as half a sentence. A user that exists, and its password, are left alone."""
    users = get_user_model()
    user = users.objects.filter(username=STAFF).first()
    if user is None:
        write_private(password_file, secrets.token_urlsafe(9))
        user = users.objects.create_superuser(STAFF, "admin@shop.example", password_file.read_text())
    kept = password_file.read_text().strip() if password_file.exists() else ""
    if kept and user.check_password(kept):
        return f"login: {STAFF}, password: {kept}"
    return f"login: {STAFF}, with its own password (manage.py changepassword {STAFF} sets a new one)"
