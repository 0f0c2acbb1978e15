"""The records of the store contract, under a name that a script in a process of its own can import too."""

from mcpfusion.testing.records import claim, last, step, workflow

__all__ = ["claim", "last", "step", "workflow"]
