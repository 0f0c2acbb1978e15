"""The fingerprint of a machine: what tells a store that a snapshot belongs to another definition."""

import hashlib
import json
from typing import Any

from .nodes import Node, Transition, Tree, has_output
from .parse import ActionDef


def fingerprint(tree: Tree, context: Any) -> str:
    """Return 16 hexadecimal digits over everything that decides how a workflow goes on.

    Two ways to write the same machine give the same fingerprint. Descriptions, meta data, tags and versions
    are not part of it, because they move no workflow; neither is the Python code of guards and actions.
    """
    described = {"context": context, "states": [_state(node) for node in tree.nodes]}
    text = json.dumps(described, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _state(node: Node) -> dict[str, Any]:
    definition = node.definition
    return {
        "id": node.id,
        "key": node.key,
        "depth": len(node.ancestors),
        "kind": node.kind,
        "initial": [definition.initial, [_action(action) for action in definition.initial_actions]],
        "history": [definition.history, _indexes(node.default)],
        "on": {key: [_transition(each) for each in found] for key, found in node.transitions.items()},
        "always": [_transition(each) for each in node.always],
        "entry": [_action(action) for action in definition.entry],
        "exit": [_action(action) for action in definition.exit],
        "output": [definition.output] if has_output(node) else [],
    }


def _transition(transition: Transition) -> list[Any]:
    definition = transition.definition
    actions = [_action(action) for action in definition.actions]
    return [_indexes(transition.targets), definition.guard, actions, transition.reenter, transition.delay]


def _action(action: ActionDef) -> list[Any]:
    return [action.type, {key: value for key, value in action.fields.items() if key != "type"}]


def _indexes(nodes: tuple[Node, ...] | None) -> list[int] | None:
    return None if nodes is None else [node.index for node in nodes]
