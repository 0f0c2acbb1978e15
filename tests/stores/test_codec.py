"""The codec refuses what is not a whole record, and gives back exactly what it was given."""

import json
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpfusion.stores import Claim, LastStep, Step, StoreError, Workflow
from mcpfusion.stores.codec import decode_step, decode_workflow, encode_step, encode_workflow
from mcpfusion.telemetry import workflow_name

from .records import claim, last, step, workflow

NAME = workflow_name("ann", "INV-1")

FULL = workflow(claim=claim(leads_to={"value": "paid"}), last=last())


def _decode(data: Any, **options: Any) -> Workflow:
    return decode_workflow(json.dumps(data, **options), "ann", "INV-1", 1)


def _data() -> dict[str, Any]:
    return json.loads(encode_workflow(FULL))


def test_the_text_is_compact_ascii():
    text = encode_workflow(FULL)
    assert text.isascii()
    assert ": " not in text.replace("paid \\u2713", "")
    assert decode_workflow(text.encode(), "ann", "INV-1", 1) == FULL


@pytest.mark.parametrize("place", ["", "claim", "last"])
def test_every_field_is_demanded(place: str):
    kind = {"": Workflow, "claim": Claim, "last": LastStep}[place]
    for field in fields(kind):
        if field.name == "expires_at":
            continue
        data = _data()
        del (data[place] if place else data)[field.name]
        named = f"{place}.{field.name}" if place else field.name
        with pytest.raises(StoreError, match=f"^workflow {NAME}: field {named} is missing$"):
            _decode(data)


def test_a_record_of_before_a_field_came_is_whole():
    data = _data()
    del data["expires_at"]
    assert _decode(data) == replace(FULL, expires_at=None)
    with pytest.raises(StoreError, match="unknown field expires "):
        _decode({**data, "expires": 1.0})


def test_every_field_of_a_step_is_demanded():
    for field in fields(Step):
        data = json.loads(encode_step(step()))
        del data[field.name]
        with pytest.raises(StoreError, match=f"field {field.name} is missing"):
            decode_step(json.dumps(data), "ann", "INV-1")


@pytest.mark.parametrize(
    ("place", "field", "value", "expected"),
    [
        ("", "id", 7, "must be Unicode text, found int"),
        ("", "id", None, "must be Unicode text, found NoneType"),
        ("", "id", "\ud800", "must be Unicode text, found str"),
        ("", "steps", 1.0, "must be a whole number from 0 up, found float"),
        ("", "steps", True, "must be a whole number from 0 up, found bool"),
        ("", "steps", -1, "must be a whole number from 0 up, found int"),
        ("", "steps", "1", "must be a whole number from 0 up, found str"),
        ("", "state", ["draft"], "must be Unicode text, found list"),
        ("", "snapshot", None, "must be an object, found NoneType"),
        ("", "snapshot", "draft", "must be an object, found str"),
        ("", "updated_at", "2026-01-01", "must be a finite number, found str"),
        ("", "updated_at", False, "must be a finite number, found bool"),
        ("", "updated_at", 10**400, "must be a finite number, found int"),
        ("", "due", "soon", "must be a finite number or null, found str"),
        ("", "expires_at", "never", "must be a finite number or null, found str"),
        ("", "claim", "mine", "must be a claim or null, found str"),
        ("", "last", [], "must be a step or null, found list"),
        ("claim", "event", 7, "must be Unicode text or null, found int"),
        ("claim", "lease_until", None, "must be a finite number, found NoneType"),
        ("claim", "in_doubt", 0, "must be true or false, found int"),
        ("claim", "on_doubt", "pay again", "must be one of hold, retry, found str"),
        ("claim", "on_doubt", ["hold"], "must be one of hold, retry, found list"),
        ("claim", "leads_to", "paid", "must be an object or null, found str"),
        ("last", "result", [1], "must be an object or null, found list"),
        ("last", "keep_until", {}, "must be a finite number, found dict"),
    ],
)
def test_every_field_has_its_type(place: str, field: str, value: Any, expected: str):
    data = _data()
    (data[place] if place else data)[field] = value
    named = f"{place}.{field}" if place else field
    with pytest.raises(StoreError) as caught:
        _decode(data)
    assert str(caught.value) == f"workflow {NAME}: field {named} {expected}"


@pytest.mark.parametrize("place", ["", "claim", "last"])
def test_an_unknown_field_is_refused(place: str):
    data = _data()
    (data[place] if place else data)["colour"] = "red"
    named = f"{place}.colour" if place else "colour"
    with pytest.raises(StoreError, match=f"unknown field {named} "):
        _decode(data)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_no_json_are_refused(number: float):
    for data in ({**_data(), "updated_at": number}, {**_data(), "snapshot": {"deep": [number]}}):
        with pytest.raises(StoreError, match="is no JSON number"):
            _decode(data)
    # 1e400 is JSON, but no number that a clock could have shown.
    text = encode_workflow(FULL).replace("1000.125", "1e400")
    with pytest.raises(StoreError, match="field updated_at must be a finite number"):
        decode_workflow(text, "ann", "INV-1", 1)


def test_nothing_of_the_record_is_in_the_message():
    data = {**_data(), "id": {"secret": "4111-1111"}}
    with pytest.raises(StoreError) as caught:
        _decode(data)
    assert "4111" not in str(caught.value)


def test_the_name_of_a_workflow_is_not_in_the_message():
    record = workflow(handle="line\nbreak\x1b[31m" + "x" * 10_000, steps=-1)
    with pytest.raises(StoreError) as caught:
        encode_workflow(record)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
    assert "break" not in str(caught.value)


def test_endless_nesting_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(StoreError, match="field snapshot cannot be kept as JSON"):
        encode_workflow(workflow(snapshot={"a": endless}))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(StoreError, match="field snapshot cannot be kept as JSON"):
        encode_workflow(workflow(snapshot={"a": deep}))
    itself: dict[str, Any] = {}
    itself["a"] = MappingProxyType(itself)
    with pytest.raises(StoreError, match="field snapshot cannot be kept as JSON"):
        encode_workflow(workflow(snapshot=itself))


texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), values, max_size=4)
counts = st.integers(0, 2**62)
claims = st.builds(
    Claim,
    call_id=texts,
    idempotency_key=texts,
    tool=texts,
    event=st.none() | texts,
    principal=st.none() | texts,
    digest=texts,
    claimed_at=numbers,
    lease_until=numbers,
    on_doubt=st.sampled_from(["hold", "retry"]),
    in_doubt=st.booleans(),
    opens=st.booleans(),
    leads_to=st.none() | objects,
)
lasts = st.builds(
    LastStep,
    call_id=texts,
    tool=texts,
    digest=texts,
    principal=st.none() | texts,
    committed_at=numbers,
    result=st.none() | objects,
    keep_until=numbers,
)
workflows = st.builds(
    Workflow,
    scope=texts,
    handle=texts,
    id=texts,
    version=counts,
    steps=counts,
    state=texts,
    snapshot=objects,
    updated_at=numbers,
    claim=st.none() | claims,
    last=st.none() | lasts,
    due=st.none() | numbers,
)
steps = st.builds(
    Step,
    scope=texts,
    handle=texts,
    from_state=texts,
    to_state=texts,
    event=st.none() | texts,
    tool=texts,
    principal=st.none() | texts,
    call_id=texts,
    at=numbers,
    outcome=st.sampled_from(["committed", "resolved_done", "resolved_not_done", "reset"]),
    arguments=values,
    result=values,
)


@given(workflows)
def test_workflows_come_back_as_they_were(written: Workflow):
    text = encode_workflow(written)
    read = decode_workflow(text, written.scope, written.handle, written.version)
    assert read == written
    assert encode_workflow(read) == text


@given(steps)
def test_steps_come_back_as_they_were(written: Step):
    assert decode_step(encode_step(written), written.scope, written.handle) == written


@settings(max_examples=300)
@given(st.data())
def test_a_truncated_or_altered_text_is_refused_or_means_the_same(data: st.DataObject):
    text = encode_workflow(replace(FULL, snapshot={}))
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(StoreError):
        decode_workflow(text[:cut], "ann", "INV-1", 1)
    altered = text[:cut] + data.draw(st.characters(exclude_categories=["Cs"])) + text[cut + 1 :]
    try:
        read = decode_workflow(altered, "ann", "INV-1", 1)
    except StoreError:
        return
    # What is still a whole record is taken as one; it has its own name and version, whatever else changed.
    assert (read.scope, read.handle, read.version) == ("ann", "INV-1", 1)
    assert json.loads(encode_workflow(read)) == json.loads(altered)
