"""The bindings that actions carry, compiled for a machine."""

from collections.abc import Iterator

from mcpfusion.actions.registry import ActionRegistry
from mcpfusion.engines.engine import Engine
from mcpfusion.gate.binding import BoundTool, Policies, bind


def bound_tools(machine: Engine, registry: ActionRegistry) -> Iterator[BoundTool]:
    """Yield a bound tool for every action that is bound to states or mints handles.

    Raises:
        BindingError: A state or event that the machine does not have.
    """
    for name, action in registry.tools.items():
        if not action.bindings and not action.mints_handle:
            continue
        bindings = tuple(bind(machine, name, spec.states, spec.transition) for spec in action.bindings)
        policies = Policies(
            time_limit=action.time_limit,
            on_doubt=action.on_doubt,
            # A function that runs on in its thread has not let go of its step.
            on_cancel=action.on_cancel if action.signature.cancellable else "finish",
            keep_result=action.keep_result or 0.0,
            mints_handle=action.mints_handle,
            compact=action.compact_description is not None,
        )
        yield BoundTool(name, bindings, policies)
