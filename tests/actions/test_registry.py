from typing import Any

import pytest

from mcpfusion.actions import Action, ActionBuilder, ActionRegistry, RegistrationError


def action(name: str) -> Action:
    return ActionBuilder("action", name).handle(lambda: None)


def test_actions_are_tools_by_their_names() -> None:
    first, second = action("invoice.view"), action("a.b.c")
    registry = ActionRegistry([first])
    registry.add(second)
    assert list(registry) == [first, second]
    assert len(registry) == 2
    assert dict(registry.tools) == {"invoice.view": first, "a.b.c": second}
    assert registry.get("a.b.c") is second
    assert registry.get("nothing") is None
    with pytest.raises(TypeError):
        registry.tools["x"] = first  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("separator", "tool"),
    [(".", "a.b-c.d"), ("_", "a_b-c_d"), ("__", "a__b-c__d"), ("-", "a-b-c-d"), ("/", "a/b-c/d")],
)
def test_the_separator_stands_for_the_dots(separator: str, tool: str) -> None:
    declared = action("a.b-c.d")
    registry = ActionRegistry([declared], separator=separator)
    assert registry.separator == separator
    assert registry.tool_name(declared) == tool
    assert registry.get(tool) is declared
    if separator != ".":
        assert registry.get("a.b-c.d") is None


@pytest.mark.parametrize("separator", ["", ":", " ", "..", "___", None])
def test_unknown_separators_are_refused(separator: Any) -> None:
    with pytest.raises(RegistrationError, match="separator must be one of"):
        ActionRegistry(separator=separator)


def test_two_actions_with_one_name_are_refused() -> None:
    registry = ActionRegistry([action("a.b")])
    with pytest.raises(RegistrationError, match=r"'a\.b' is declared twice"):
        registry.add(action("a.b"))
    with pytest.raises(RegistrationError):
        registry.add(registry.tools["a.b"])
    assert len(registry) == 1


@pytest.mark.parametrize(
    ("separator", "first", "second"),
    [("_", "a.b_c", "a_b.c"), ("__", "a.b__c", "a__b.c"), ("-", "a.b-c", "a-b.c"), ("_", "a.b.c", "a.b_c")],
)
def test_two_names_that_become_one_tool_are_refused_and_both_named(separator: str, first: str, second: str) -> None:
    registry = ActionRegistry([action(first)], separator=separator)
    with pytest.raises(RegistrationError) as error:
        registry.add(action(second))
    for word in (repr(first), repr(second), repr(registry.tool_name(action(first)))):
        assert word in str(error.value)
    assert [found.name for found in registry] == [first]
    ActionRegistry([action(first), action(second)])


def test_a_tool_name_that_becomes_too_long_is_refused() -> None:
    name = "a." + "b" * 126
    ActionRegistry([action(name)])
    with pytest.raises(RegistrationError, match="1 to 128"):
        ActionRegistry([action(name)], separator="__")
