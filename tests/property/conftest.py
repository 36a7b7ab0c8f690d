"""The property layer plays with the same stage as the contract layer."""

from tests.contract.conftest import _committing_database, stage

__all__ = ["_committing_database", "stage"]
