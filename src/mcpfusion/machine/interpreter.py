"""The interpreter: from one stable configuration to the next.

What depends on structure alone (which candidates an event has, which states a set of transitions leaves and
enters, in which order their actions run) is worked out once for each configuration and kept. A step then asks
guards, looks a plan up and runs its actions.

Source: XState 5, `macrostep` and `microstep`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from .actions import Action, Step
from .configurations import Configurations, is_final, is_legal
from .descriptors import candidates
from .errors import MachineError
from .nodes import Node, Transition, Tree, has_output
from .snapshot import Event, Snapshot, Timer
from .structure import EntrySet, Remembered, domain_of, exit_mask, remember, without_conflicts

_log = logging.getLogger("mcpfusion.machine")

_KEPT = 4096
"""How many choices, and how many plans, are kept: a parallel machine has many configurations."""

History: TypeAlias = Mapping[str, tuple[str, ...]]
_Chosen: TypeAlias = tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a configuration has for an event: first what lies within, and only if that takes nothing its own."""

    inner: "tuple[_Choice, ...]"
    own: _Chosen


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a set of transitions does: the actions to run in order, and what is active afterwards.

    `moves` is False when the same states are active as before and nothing was remembered.
    """

    actions: tuple[Action, ...]
    mask: int
    history: History | None
    final: bool
    moves: bool


class Interpreter:
    """The transitions of one machine. Holds nothing but what was compiled and what was worked out from it."""

    def __init__(self, tree: Tree, configurations: Configurations, limit: int) -> None:
        self._tree = tree
        self._configurations = configurations
        self._limit = limit
        self._paths = {node.path: node for node in tree.nodes}
        self._choices: dict[tuple[int, str], _Choice | None] = {}
        self._always: dict[int, tuple[_Chosen, ...]] = {}
        self._plans: dict[Any, _Plan] = {}

    def start(self, context: Mapping[str, Any], now: float) -> Snapshot:
        """Return where a new workflow stands."""
        step = Step(context, (), {"type": "xstate.init"}, now)
        plan = self._enter_initial()
        for action in plan.actions:
            action(step)
        return self._settle(step, plan.mask, {}, plan.final)

    def fire(self, snapshot: Snapshot, timer: Timer) -> Snapshot:
        """Return where the workflow stands once `timer` has gone off, at the time at which it was due."""
        timers = tuple(each for each in snapshot.timers if each is not timer)
        return self.send(replace(snapshot, timers=timers, effects=()), timer.event, timer.due)

    def can(self, snapshot: Snapshot, event: Event) -> bool:
        """True when a transition that does something is enabled by the event."""
        if snapshot.status == "done":
            return False
        chosen = self._select(snapshot.configuration.mask, snapshot.context, event)
        return any(not each.forbidden for each in chosen)

    def send(self, snapshot: Snapshot, event: Event, now: float) -> Snapshot:
        """Return where the workflow stands after the event; the same snapshot when nothing accepts it."""
        if snapshot.status == "done":
            return snapshot
        mask, history, final = snapshot.configuration.mask, snapshot.history, False
        step = Step(snapshot.context, snapshot.timers, event, now)
        chosen = self._select(mask, step.context, event)
        accepted = any(not each.forbidden for each in chosen)
        if accepted:
            plan = self._plan(mask, chosen, history)
            for action in plan.actions:
                action(step)
            mask, final = plan.mask, plan.final
            history = history if plan.history is None else plan.history
        elif not self._enabled(mask, step.context, event):
            return snapshot
        return self._settle(step, mask, history, final)

    def _settle(self, step: Step, mask: int, history: History, final: bool) -> Snapshot:
        """Take eventless transitions and raised events until none is left."""
        look = True
        taken = 0
        while not final:
            chosen = self._enabled(mask, step.context, step.event) if look else ()
            eventless = bool(chosen)
            if not eventless:
                if not step.queue:
                    break
                step.event = step.queue.popleft()
                chosen = self._select(mask, step.context, step.event)
            taken += 1
            if taken > self._limit:
                raise MachineError(
                    f"machine {self._tree.root.id!r}: no rest after {self._limit} microsteps in "
                    f"{self._configurations.of(mask).state!r}: eventless transitions or raised events form a loop"
                )
            if not chosen:
                look = True
                continue
            plan = self._plan(mask, chosen, history)
            step.changed = False
            for action in plan.actions:
                action(step)
            mask, final = plan.mask, plan.final
            history = history if plan.history is None else plan.history
            # An eventless transition that changed nothing would be taken again and again.
            look = step.changed or plan.moves or not eventless
        return self._snapshot(step, mask, history, final)

    def _snapshot(self, step: Step, mask: int, history: History, final: bool) -> Snapshot:
        root = self._tree.root
        return Snapshot(
            configuration=self._configurations.of(mask),
            context=step.context,
            output=root.output if final and has_output(root) else None,
            history=history,
            timers=() if final else step.timers,
            effects=tuple(step.effects),
        )

    def _select(self, mask: int, context: Mapping[str, Any], event: Event) -> _Chosen:
        choice = self._choice(mask, event["type"])
        return () if choice is None else self._take(choice, context, event, mask)

    def _take(self, choice: _Choice, context: Mapping[str, Any], event: Event, mask: int) -> _Chosen:
        taken: _Chosen = ()
        for inner in choice.inner:
            taken += self._take(inner, context, event, mask)
        if taken:
            return taken
        for candidate in choice.own:
            if candidate.guard is None or _passes(candidate, context, event, mask):
                return (candidate,)
        return ()

    def _choice(self, mask: int, event: str) -> _Choice | None:
        key = (mask, event)
        try:
            return self._choices[key]
        except KeyError:
            pass
        if len(self._choices) >= _KEPT:
            self._choices.clear()
        choice = self._choices[key] = self._choose(self._tree.root, mask, event)
        return choice

    def _choose(self, node: Node, mask: int, event: str) -> _Choice | None:
        active = (child for child in node.children if mask & child.bit)
        inner = tuple(found for child in active if (found := self._choose(child, mask, event)) is not None)
        own = candidates(node.transitions, event)
        if not own:
            return inner[0] if len(inner) == 1 else (_Choice(inner, ()) if inner else None)
        return _Choice(inner, own)

    def _enabled(self, mask: int, context: Mapping[str, Any], event: Event) -> _Chosen:
        """Return the eventless transitions that are enabled, in document order of the states that ask."""
        chains = self._always.get(mask)
        if chains is None:
            if len(self._always) >= _KEPT:
                self._always.clear()
            chains = self._always[mask] = self._chains(mask)
        found: dict[Transition, None] = {}
        for chain in chains:
            for candidate in chain:
                if candidate.guard is None or _passes(candidate, context, event, mask):
                    found[candidate] = None
                    break
        return tuple(found)

    def _chains(self, mask: int) -> tuple[_Chosen, ...]:
        atomic = (node for node in self._tree.nodes if node.atomic and mask & node.bit)
        chains = (sum((each.always for each in (node, *node.ancestors)), ()) for node in atomic)
        return tuple(chain for chain in chains if chain)

    def _plan(self, mask: int, chosen: _Chosen, history: History) -> _Plan:
        key = (mask, chosen, tuple(history.items())) if history else (mask, chosen)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan(mask, chosen, history)
        return plan

    def _make_plan(self, mask: int, chosen: _Chosen, history: History) -> _Plan:
        remembered = {path: tuple(self._paths[each] for each in known) for path, known in history.items()}
        transitions = without_conflicts(chosen, mask, remembered)
        plan = self._carry_out(mask, transitions, remembered)
        while not is_legal(self._tree.root, plan.mask) and len(transitions) > 1:
            # A history state may lead a region to where it is, which leaves nothing and so conflicts with
            # nothing. XState then has two active children in one compound state; here the first region wins.
            transitions.pop()
            plan = self._carry_out(mask, transitions, remembered)
        return plan

    def _carry_out(self, mask: int, transitions: list[Transition], history: Remembered) -> _Plan:
        leaves = 0
        for each in transitions:
            leaves |= exit_mask(each, mask, history)
        exited = [node for node in reversed(self._tree.nodes) if leaves & node.bit]
        news = remember(exited, mask, self._tree)
        known = {**history, **news}
        actions = [action for node in exited for action in node.exit]
        actions += [action for each in transitions for action in each.actions]
        entry = EntrySet(known)
        for each in transitions:
            entry.add(each, domain_of(each, history))
        after, entered = self._entered(mask & ~leaves, entry)
        final = is_final(self._tree.root, after)
        actions += entered
        if final:
            actions += self._exit_all(after)
        written = {path: tuple(each.path for each in nodes) for path, nodes in known.items()}
        moves = after != mask or bool(news) or final
        return _Plan(tuple(actions), after, written if news else None, final, moves)

    def _enter_initial(self) -> _Plan:
        root = self._tree.root
        entry = EntrySet({})
        entry.add_machine(root)
        mask, actions = self._entered(0, entry)
        final = is_final(root, mask)
        if final:
            actions += self._exit_all(mask)
        return _Plan(tuple(actions), mask, None, final, True)

    def _entered(self, mask: int, entry: EntrySet) -> tuple[int, list[Action]]:
        """Return what is active, and the actions that run, once all states of an entry set are entered."""
        actions: list[Action] = []
        completed: set[Node] = set()
        for node in self._tree.nodes:
            if not entry.mask & node.bit:
                continue
            mask |= node.bit
            actions += node.entry
            if entry.by_default & node.bit:
                actions += node.initial_actions
            if node.kind == "final":
                actions += _done(node, mask, completed)
        return mask, actions

    def _exit_all(self, mask: int) -> list[Action]:
        left = (node for node in reversed(self._tree.nodes) if mask & node.bit)
        return [action for node in left for action in node.exit]


def _done(node: Node, mask: int, completed: set[Node]) -> list[Action]:
    """Return the actions that tell the ancestors of a final state that they are done."""
    parent = node.parent
    if parent is None:
        return []
    found: list[Action] = []
    if parent.kind == "compound":
        found.append(_raise_done(parent, node.output if has_output(node) else None))
    ancestor = parent if parent.kind == "parallel" else parent.parent
    while ancestor is not None and ancestor.kind == "parallel" and ancestor not in completed:
        if not is_final(ancestor, mask):
            break
        completed.add(ancestor)
        found.append(_raise_done(ancestor, None))
        ancestor = ancestor.parent
    return found


def _raise_done(node: Node, output: Any) -> Action:
    event = {"type": f"xstate.done.state.{node.id}", "output": output}
    return lambda step: step.queue.append(event)


def _passes(transition: Transition, context: Mapping[str, Any], event: Event, mask: int) -> bool:
    """Ask a guard. One that raises denies, wherever it stands: `not` does not turn a failure into consent."""
    try:
        return transition.guard(MappingProxyType(context), event, mask)
    except Exception:
        where = transition.definition.where or "machine"
        _log.exception("the guard of %s raised: the transition is denied", where)
        return False
