"""A YAML loader of JSON data: the core schema of YAML 1.2, in which `on` is a string.

PyYAML reads YAML 1.1, where the key `on` of every state would be the boolean true.
"""

import re
from typing import Any

import yaml
from yaml import YAMLError

__all__ = ["YAMLError", "load"]


def _refuse(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to configure a loader

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refuse("a key must be a string", key_node)
            if key_node.value in found:
                raise _refuse(f"the key {key_node.value!r} occurs twice in one object", key_node)
            value = self.construct_object(value_node, deep=True)  # pyright: ignore[reportUnknownMemberType]
            found[key_node.value] = value
        return found


# https://yaml.org/spec/1.2.2/#1032-tag-resolution
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
    )


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    return int(text, 16) if text.startswith("0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def load(text: str) -> Any:
    """Return the data of one YAML document; every key is a string as written, and none occurs twice."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - derived from SafeLoader
