import dataclasses
import functools
import inspect
from typing import Any

import pytest

from mcpfusion.actions import Action, ActionBuilder, ActionKeywords, BindingSpec, RegistrationError
from mcpfusion.actions.middleware import Call, CallNext
from mcpfusion.actions.results import ToolResult
from tests.support.ids import case_name


def build(name: str = "invoice.view", kind: Any = "action", **keywords: Any) -> Action:
    return ActionBuilder(kind, name).keywords(**keywords).handle(view)


def view(id: str) -> dict[str, str]:
    """Show an invoice.

    With all its lines.
    """
    return {"id": id}


async def passing(call: Call, call_next: CallNext) -> ToolResult:
    return await call_next(call)


# Each keyword with the chain that says the same.
SPELLINGS: list[tuple[dict[str, Any], Any]] = [
    ({"describe": "Text"}, lambda b: b.describe("Text")),
    ({"title": "Text"}, lambda b: b.title("Text")),
    ({"compact_description": "Text"}, lambda b: b.compact_description("Text")),
    ({"icons": [{"src": "a.png"}]}, lambda b: b.icons([{"src": "a.png"}])),
    ({"meta": {"a": 1}}, lambda b: b.meta({"a": 1})),
    ({"tags": ("x", "y")}, lambda b: b.tags("x", "y")),
    ({"tags": ["x"]}, lambda b: b.tags("x")),
    ({"tags": "x"}, lambda b: b.tags("x")),
    ({"annotations": {"read_only": True}}, lambda b: b.annotations(read_only=True)),
    ({"bind_state": "draft"}, lambda b: b.bind_state("draft")),
    ({"bind_state": ["draft", "review"]}, lambda b: b.bind_state(["draft", "review"])),
    ({"bind_state": ("draft",)}, lambda b: b.bind_state("draft")),
    ({"bind_state": ("draft", "SUBMIT")}, lambda b: b.bind_state("draft", "SUBMIT")),
    ({"bind_state": (["draft", "review"], "X")}, lambda b: b.bind_state(["draft", "review"], "X")),
    (
        {"bind_state": [("draft", "X"), ("review", "Y")]},
        lambda b: b.bind_state("draft", "X").bind_state("review", "Y"),
    ),
    ({"mints_handle": True}, lambda b: b.mints_handle()),
    ({"mints_handle": False}, lambda b: b.mints_handle(False)),
    ({"time_limit": 5}, lambda b: b.time_limit(5)),
    ({"on_doubt": "retry"}, lambda b: b.on_doubt("retry")),
    ({"on_cancel": "release"}, lambda b: b.on_cancel("release")),
    ({"keep_result": 60}, lambda b: b.keep_result(60)),
    ({"use": [passing]}, lambda b: b.use(passing)),
    ({"use": passing}, lambda b: b.use(passing)),
]


def plain(action: Action) -> dict[str, Any]:
    return {f.name: getattr(action, f.name) for f in dataclasses.fields(action) if f.name != "signature"}


@pytest.mark.parametrize(("keywords", "chain"), SPELLINGS, ids=[case_name(k) for k, _ in SPELLINGS])
def test_a_keyword_says_what_the_method_of_its_name_says(keywords: dict[str, Any], chain: Any) -> None:
    chained = chain(ActionBuilder("action", "invoice.view")).handle(view)
    assert plain(build(**keywords)) == plain(chained)
    if keywords not in ({"mints_handle": False},):
        assert plain(chained) != plain(build())


def test_keywords_and_methods_are_the_same_names() -> None:
    methods = {name for name, _ in inspect.getmembers(ActionBuilder, inspect.isfunction) if name[0] != "_"}
    assert methods - {"handle", "keywords"} == set(ActionKeywords.__annotations__)
    assert {keyword for keywords, _ in SPELLINGS for keyword in keywords} == set(ActionKeywords.__annotations__)


def test_a_builder_is_not_changed_by_its_methods() -> None:
    start = ActionBuilder("action", "invoice.view")
    for _, chain in SPELLINGS:
        chain(start)
    assert plain(start.handle(view)) == plain(build())


def test_everything_that_was_declared_is_in_the_action() -> None:
    def pick(arguments: dict[str, Any], result: Any) -> str | None:
        return None

    action = build(
        describe="Show it",
        title="View",
        compact_description="Show",
        icons=[{"src": "https://x/i.png", "sizes": ["48x48"]}],
        meta={"team": "billing"},
        tags=("billing", "read", "billing"),
        bind_state=[("draft", "X"), (["review", "tag:open"], pick)],
        mints_handle=True,
        time_limit=5,
        on_doubt="hold",
        on_cancel="release",
        keep_result=60,
        use=[passing],
    )
    assert action.description == "Show it"
    assert action.title == "View"
    assert action.compact_description == "Show"
    assert action.icons == ({"src": "https://x/i.png", "sizes": ["48x48"]},)
    assert action.meta == {"team": "billing"}
    assert action.tags == ("billing", "read")
    assert action.bindings == (BindingSpec(("draft",), "X"), BindingSpec(("review", "tag:open"), pick))
    assert action.mints_handle is True
    assert (action.time_limit, action.keep_result) == (5.0, 60.0)
    assert (action.on_doubt, action.on_cancel) == ("hold", "release")
    assert action.middleware == (passing,)


def test_what_was_not_declared() -> None:
    action = build()
    assert action.kind == "action"
    assert (action.title, action.meta, action.compact_description) == (None, None, None)
    assert (action.icons, action.tags, action.bindings, action.middleware) == ((), (), (), ())
    assert (action.time_limit, action.keep_result, action.mints_handle) == (None, None, False)
    assert action.on_cancel == "finish"


@pytest.mark.parametrize(
    ("kind", "hints", "expected", "on_doubt"),
    [
        ("query", {}, {"readOnlyHint": True}, "retry"),
        ("mutation", {}, {"readOnlyHint": False, "destructiveHint": True}, "hold"),
        ("action", {}, {}, "hold"),
        ("action", {"destructive": False}, {"destructiveHint": False}, "retry"),
        ("action", {"destructive": True}, {"destructiveHint": True}, "hold"),
        ("action", {"read_only": False}, {"readOnlyHint": False}, "hold"),
        (
            "action",
            {"idempotent": True, "open_world": False},
            {"idempotentHint": True, "openWorldHint": False},
            "hold",
        ),
        ("mutation", {"destructive": False}, {"readOnlyHint": False, "destructiveHint": False}, "retry"),
        ("mutation", {"read_only": True}, {"readOnlyHint": True}, "retry"),
        ("query", {"read_only": False}, {"readOnlyHint": False}, "hold"),
        ("query", {"open_world": True}, {"readOnlyHint": True, "openWorldHint": True}, "retry"),
        (
            "query",
            {"read_only": False, "destructive": True},
            {"readOnlyHint": False, "destructiveHint": True},
            "hold",
        ),
    ],
)
def test_the_kind_sets_the_hints_and_each_can_be_overridden(
    kind: Any, hints: dict[str, bool], expected: dict[str, bool], on_doubt: str
) -> None:
    action = build(kind=kind, annotations=hints)
    assert action.annotations == expected
    assert action.on_doubt == on_doubt


def test_hints_add_up_over_several_calls() -> None:
    builder = ActionBuilder("action", "a.b").annotations(idempotent=True).annotations(open_world=True)
    assert builder.handle(view).annotations == {"idempotentHint": True, "openWorldHint": True}


def test_what_is_said_about_doubt_counts_more_than_the_hints() -> None:
    assert build(kind="query", on_doubt="hold").on_doubt == "hold"
    assert build(kind="mutation", on_doubt="retry").on_doubt == "retry"


@pytest.mark.parametrize("kind", ["query", "mutation"])
def test_read_only_and_destructive_contradict_each_other(kind: Any) -> None:
    with pytest.raises(RegistrationError, match="contradict"):
        build(kind=kind, annotations={"read_only": True, "destructive": True})


def test_the_docstring_is_the_description() -> None:
    assert build().description == "Show an invoice.\n\nWith all its lines."
    assert build(describe="Mine").description == "Mine"


def test_without_docstring_the_words_of_the_name_are_the_description() -> None:
    def bare(id: str) -> None: ...

    assert ActionBuilder("action", "user_account.close-all").handle(bare).description == "user account close all"


def test_the_description_of_a_partial_and_of_a_callable_object_is_their_own() -> None:
    class Tool:
        """A tool."""

        def __call__(self, id: str) -> None: ...

    class Documented(Tool):
        def __call__(self, id: str) -> None:
            """Call it."""

    assert ActionBuilder("action", "a.b").handle(functools.partial(view)).description.startswith("Show an invoice.")
    assert ActionBuilder("action", "a.b").handle(Tool()).description == "A tool."
    assert ActionBuilder("action", "a.b").handle(Documented()).description == "Call it."


def test_handle_is_a_decorator_and_the_action_is_still_callable() -> None:
    @ActionBuilder("query", "invoice.show").handle
    def show(id: str, copies: int = 1) -> str:
        return id * copies

    assert isinstance(show, Action)
    assert show("a", copies=2) == "aa"
    assert show.fn("b") == "b"


def test_an_action_is_handed_to_register_once_complete() -> None:
    seen: list[Action] = []
    action = ActionBuilder("action", "a.b", register=seen.append).describe("x").handle(view)
    assert seen == [action]


def test_a_refused_handler_is_not_registered() -> None:
    seen: list[Action] = []
    with pytest.raises(RegistrationError):
        ActionBuilder("action", "a.b", register=seen.append).handle(lambda *args: None)
    assert seen == []


def test_one_handler_may_serve_two_actions() -> None:
    first = ActionBuilder("action", "a.one").handle(view)
    second = ActionBuilder("action", "a.two").handle(first)
    assert second.fn is view
    assert second.signature.input_schema == first.signature.input_schema


def test_actions_are_equal_by_identity_and_cannot_be_changed() -> None:
    first, second = build(), build()
    assert first != second
    assert len({first, second}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.name = "x"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["a.b", "invoice.discharge", "a.b.c.d", "A-1._x", "a" * 63 + "." + "b" * 64])
def test_names_that_are_allowed(name: str) -> None:
    assert build(name).name == name


@pytest.mark.parametrize(
    "name",
    ["", "a", "a.", ".a", "a..b", "a b.c", "a.b!", "ä.b", "a/b.c", "a.b\n", "a" * 64 + "." + "b" * 64, None, 7],
)
def test_names_that_are_refused(name: Any) -> None:
    with pytest.raises(RegistrationError, match="name"):
        build(name)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"describe": ""}, "describe must be text"),
        ({"describe": 5}, "describe must be text, not 5"),
        ({"title": None}, "title must be text"),
        ({"compact_description": b"x"}, "compact_description must be text"),
        ({"icons": {"src": "x"}}, "icons must be"),
        ({"icons": [{"href": "x"}]}, "icons must be a list of dicts with a 'src'"),
        ({"icons": ["x"]}, "icons must be"),
        ({"meta": [1]}, "meta must be a dict"),
        ({"tags": [1]}, "tags must be text"),
        ({"tags": ""}, "tags must be text"),
        ({"annotations": True}, "annotations must be a dict"),
        ({"annotations": {"readonly": True}}, "annotations: there is no hint 'readonly' .did you mean 'read_only'"),
        ({"annotations": {"read_only": "yes"}}, "annotations: read_only must be true or false, not 'yes'"),
        ({"annotations": {"read_only": 1}}, "annotations: read_only must be true or false"),
        ({"bind_state": ""}, "bind_state must be a state or several"),
        ({"bind_state": []}, "bind_state must be a state or several"),
        ({"bind_state": ["a", ""]}, "bind_state must be a state or several"),
        ({"bind_state": [1]}, "bind_state must be a state or several"),
        ({"bind_state": 7}, "bind_state must be a state or several"),
        ({"bind_state": ("a", "b", "c")}, "bind_state must be .states, transition."),
        ({"bind_state": ()}, "bind_state must be"),
        ({"bind_state": ("a", "")}, "bind_state: transition must be an event"),
        ({"bind_state": ("a", 5)}, "bind_state: transition must be an event"),
        ({"bind_state": [("a", "X"), ("b", 5)]}, "bind_state: transition must be an event"),
        ({"bind_state": [("a", "X"), "b"]}, "bind_state"),
        ({"mints_handle": "yes"}, "mints_handle must be true or false"),
        ({"time_limit": 0}, "time_limit must be a positive number of seconds, not 0"),
        ({"time_limit": -1}, "time_limit must be a positive"),
        ({"time_limit": True}, "time_limit must be a positive"),
        ({"time_limit": float("inf")}, "time_limit must be a positive"),
        ({"time_limit": float("nan")}, "time_limit must be a positive"),
        ({"time_limit": "5"}, "time_limit must be a positive"),
        ({"keep_result": None}, "keep_result must be a positive"),
        ({"on_doubt": "wait"}, "on_doubt must be 'hold' or 'retry', not 'wait'"),
        ({"on_cancel": "stop"}, "on_cancel must be 'finish' or 'release', not 'stop'"),
        ({"use": "x"}, "use must be"),
        ({"use": [passing, None]}, "use must be"),
        ({"descibe": "x"}, "there is no keyword 'descibe' .did you mean 'describe'"),
        ({"handle": view}, "there is no keyword 'handle'"),
        ({"_with_slot": 1}, "there is no keyword '_with_slot'"),
        ({"zzz": 1}, "there is no keyword 'zzz'$"),
    ],
    ids=case_name,
)
def test_what_cannot_be_right_is_refused_with_action_and_argument(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistrationError, match=says) as refused:
        build(**keywords)
    assert "action 'invoice.view': " in str(refused.value)
