"""The bindings that actions carry, compiled for a machine."""

from collections.abc import Iterator

from mcpfusion.actions.registry import ActionRegistry
from mcpfusion.engines.engine import Engine
from mcpfusion.gate.binding import BindingError, Bindings, BoundTool, Policies, bind
from mcpfusion.gate.gate import StateMachineGate


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


def compiled(gate: StateMachineGate | None, registry: ActionRegistry) -> Bindings | None:
    """Return the bindings of a gate and of a server's actions; None without a gate.

    Raises:
        BindingError: A binding does not fit the machine, or there are bindings and no gate.
    """
    if gate is not None:
        return gate.compile(bound_tools(gate.machine, registry))
    bound = [name for name, action in registry.tools.items() if action.bindings or action.mints_handle]
    if bound:
        raise BindingError(f"action {bound[0]!r} is bound to states, but the server is given no machine (fsm=…)")
    return None
