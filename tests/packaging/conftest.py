"""The wheels that the tests install; each is built once per session."""

from pathlib import Path

import pytest

from .wheels import build_wheel, copy_tree, install_wheel

pytest.register_assert_rewrite("tests.packaging.upgraded_site")  # so that failures show the compared values


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build_wheel(copy_tree(tmp_path_factory.mktemp("tree") / "tree"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the wheel of this tree is installed."""
    return install_wheel(wheel, tmp_path_factory.mktemp("installed"))
