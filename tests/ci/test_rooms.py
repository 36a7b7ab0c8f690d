"""Modules stay few enough in each folder to be found at first guess."""

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "delaytasks"
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")} - set(PACKAGE.rglob("migrations")))


def modules(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def test_the_root_of_the_package_has_at_most_24_modules() -> None:
    assert len(modules(PACKAGE)) <= 24


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_folder_has_more_than_14_modules(folder: Path) -> None:
    assert folder == PACKAGE or len(modules(folder)) <= 14
