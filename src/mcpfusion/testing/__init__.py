"""What users import in their own tests: the contracts that a store of theirs must keep. Needs pytest."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpfusion.testing.contracts import store_contract, swarm_store_contract

__all__ = ["store_contract", "swarm_store_contract"]

_TESTS = ("workflows", "queries", "engines", "swarm_stores", "places")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # So that a failed assert shows what it compared, as in a test of the user's own. For a module that is imported
    # already it is too late, and pytest would warn of it.
    tests = [f"{__name__}.{module}" for module in _TESTS]
    pytest.register_assert_rewrite(*(module for module in tests if module not in sys.modules))
    return getattr(import_module(f"{__name__}.contracts"), name)
