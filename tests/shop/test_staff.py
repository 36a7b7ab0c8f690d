"""The staff user that `make run` makes."""

import stat

from django.contrib.auth import get_user_model

from project.staff import make_staff


def test_the_first_run_makes_a_superuser_and_keeps_its_password_private(db, tmp_path):
    path = tmp_path / "admin_password"

    said = make_staff(path)

    user = get_user_model().objects.get()
    assert user.is_superuser
    assert user.check_password(path.read_text())
    assert said == f"login: admin, password: {path.read_text()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_next_run_says_the_same(db, tmp_path):
    assert make_staff(tmp_path / "admin_password") == make_staff(tmp_path / "admin_password")


def test_a_password_that_was_changed_is_left_alone_and_not_shown(db, tmp_path):
    make_staff(tmp_path / "admin_password")
    user = get_user_model().objects.get()
    user.set_password("another one")
    user.save()

    said = make_staff(tmp_path / "admin_password")

    user.refresh_from_db()
    assert user.check_password("another one")
    assert "with its own password" in said
