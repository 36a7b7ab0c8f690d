"""The superuser that `make run` creates."""

import stat

from django.contrib.auth import get_user_model

from project.run.superuser import ensure_superuser


def test_the_first_run_creates_a_superuser_and_a_private_password_file(db, tmp_path):
    path = tmp_path / "admin_password"

    login = ensure_superuser(path)

    user = get_user_model().objects.get()
    assert user.is_superuser
    assert user.check_password(path.read_text())
    assert login == f"login: admin, password: {path.read_text()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_next_run_shows_the_same_login(db, tmp_path):
    assert ensure_superuser(tmp_path / "admin_password") == ensure_superuser(tmp_path / "admin_password")


def test_a_changed_password_is_kept_and_not_shown(db, tmp_path):
    ensure_superuser(tmp_path / "admin_password")
    user = get_user_model().objects.get()
    user.set_password("another one")
    user.save()

    login = ensure_superuser(tmp_path / "admin_password")

    user.refresh_from_db()
    assert user.check_password("another one")
    assert "with the password you set" in login
