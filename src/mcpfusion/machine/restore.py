"""Reading a stored snapshot: everything in it is checked against the machine, and nothing is assumed."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from .configurations import Configurations
from .errors import MachineError, UnknownStateError, near_miss
from .jsondata import json_of, object_of
from .nodes import Node, Tree, has_output
from .snapshot import Configuration, Snapshot, Timer


class Restorer:
    """Restores the snapshots of one machine.

    A snapshot of an older definition is taken when it fits this one: its state value is legal, its history and
    its timers belong to states that exist. It then belongs to this machine.
    """

    def __init__(self, tree: Tree, configurations: Configurations, context: Mapping[str, Any]) -> None:
        self._tree = tree
        self._configurations = configurations
        self._context = context
        self._histories = {node.path: node for node in tree.nodes if node.kind == "history"}

    def restore(self, data: Any) -> Snapshot:
        """Return the snapshot of `Snapshot.to_json`. Raises UnknownStateError when it does not fit."""
        if type(data) is not dict and not isinstance(data, Mapping):
            raise self._misfit(f"a snapshot is an object, not {type(data).__name__}")
        stored = cast("Mapping[str, Any]", data)
        configuration = self._configurations.read(stored.get("value"))
        ours = stored.get("machine") == configuration.machine
        self._check_status(stored.get("status"), configuration, ours)
        history, timers = stored.get("history"), stored.get("timers")
        try:
            return Snapshot(
                configuration,
                self._read_context(stored.get("context"), ours),
                self._output(stored, configuration) if configuration.final else None,
                self._read_history(history) if history is not None else {},
                self._read_timers(timers, configuration) if timers is not None else (),
            )
        except RecursionError as error:
            raise self._misfit("nested too deeply") from error
        except UnknownStateError:
            raise
        except MachineError as error:
            raise self._misfit(str(error)) from error

    def restore_state(self, text: str) -> Snapshot:
        """Return the snapshot of a bare state. Raises UnknownStateError when there is no such state."""
        value: Any = text
        if text not in self._tree.root.states and text.lstrip().startswith("{"):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                raise self._misfit(f"{text!r} is neither a state nor a state value in JSON") from None
        return self.restore({"value": value})

    def _check_status(self, status: Any, configuration: Configuration, ours: bool) -> None:
        if status not in (None, "active", "done"):
            raise self._misfit(f"{status!r} is no status")
        if ours and status is not None and (status == "done") != configuration.final:
            raise self._misfit(f"the state {configuration.state!r} cannot have the status {status!r}")

    def _output(self, stored: Mapping[str, Any], configuration: Configuration) -> Any:
        if "output" in stored:
            return json_of(stored["output"], "output", UnknownStateError)
        return self._tree.root.output if has_output(self._tree.root) else None

    def _read_context(self, value: Any, ours: bool) -> Mapping[str, Any]:
        context = json_of(object_of(value, "context", "'context'"), "context", UnknownStateError)
        if (ours and context) or not self._context:
            return context
        # What a later definition added to the context begins as that definition says.
        return {**json_of(self._context, "context"), **context}

    def _read_history(self, value: Any) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for path, states in object_of(value, "history", "'history'").items():
            node = self._histories.get(path)
            if node is None or node.parent is None:
                raise self._misfit(f"no history state {path!r}{near_miss(path, self._histories)}")
            if not isinstance(states, list | tuple):
                raise self._misfit(f"what {path!r} remembers is no list")
            found[path] = self._remembered(node, node.parent, cast("Sequence[Any]", states))
        return found

    def _remembered(self, history: Node, parent: Node, states: Sequence[Any]) -> tuple[str, ...]:
        found: list[Node] = []
        for path in states:
            node = self._tree.by_path.get(path) if isinstance(path, str) else None
            if node is None or not (node.within(parent) if history.deep else node.parent is parent):
                raise self._misfit(f"{history.path!r} cannot remember {path!r}")
            found.append(node)
        mask = 0
        for node in found:
            for each in (node, *node.ancestors):
                mask |= each.bit
        below = (node for node in self._tree.nodes if node is parent or node.within(parent))
        for node in below:
            active = sum(1 for child in node.children if child.bit & mask)
            # A compound state below the parent may be left open: entering it takes its initial state.
            if node.kind == "compound" and (active > 1 or (active == 0 and node is parent)):
                raise self._misfit(f"what {history.path!r} remembers is no legal set of states")
        return tuple(node.path for node in found)

    def _read_timers(self, value: Any, configuration: Configuration) -> tuple[Timer, ...]:
        if not isinstance(value, list | tuple):
            raise self._misfit("'timers' is no list")
        timers = tuple(self._read_timer(each, configuration) for each in cast("Sequence[Any]", value))
        if len({timer.id for timer in timers}) < len(timers):
            raise self._misfit("two timers have the same id")
        if configuration.final and timers:
            raise self._misfit(f"{configuration.state!r} is final and has no timers")
        return timers

    def _read_timer(self, value: Any, configuration: Configuration) -> Timer:
        timer = object_of(value, "timers", "a timer")
        name, due, event = timer.get("id"), timer.get("due"), timer.get("event")
        if not isinstance(name, str) or not isinstance(event, Mapping):
            raise self._misfit("a timer needs an id and an event")
        kind = cast("Mapping[str, Any]", event).get("type")
        if not isinstance(kind, str):
            raise self._misfit("the event of a timer needs a type")
        if isinstance(due, bool) or not isinstance(due, int | float) or not math.isfinite(due):
            raise self._misfit("a timer needs the time at which it is due")
        if kind.startswith("xstate.after.") and not self._waits_for(kind, configuration.mask):
            raise self._misfit(f"the timer {kind!r} belongs to no active state")
        return Timer(name, json_of(event, "event", UnknownStateError), float(due))

    def _waits_for(self, event: str, mask: int) -> bool:
        """A delay that is no longer configured would be lost silently: such a snapshot does not fit."""
        return any(mask & node.bit and event in node.transitions for node in self._tree.nodes)

    def _misfit(self, problem: str) -> UnknownStateError:
        return UnknownStateError(f"machine {self._tree.root.id!r}: {problem}")
