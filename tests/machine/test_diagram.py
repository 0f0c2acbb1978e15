"""Pictures: every state, every transition and every tool is on them, and no name breaks their syntax."""

import re
from typing import Any

import pytest

from mcpfusion.machine import Machine
from mcpfusion.machine.diagram import to_dot, to_mermaid

LOAN: dict[str, Any] = {
    "id": "loan",
    "initial": "draft",
    "on": {"RESET": ".draft", "PING": {"actions": {"type": "xstate.emit", "event": "PONG"}}},
    "states": {
        "draft": {"on": {"SUBMIT": "review", "NEVER": {}}},
        "review": {
            "initial": "open",
            "onDone": "paid",
            "after": {5000: "draft", "slow": {"target": "review", "reenter": True}},
            "states": {
                "open": {
                    "always": {"target": "ok", "guard": {"not": "g"}},
                    "on": {"OK": {"target": "ok", "guard": "g"}},
                },
                "ok": {"type": "final"},
                "back": {"type": "history", "history": "deep"},
            },
        },
        "paid": {"type": "final"},
    },
}


@pytest.fixture
def machine() -> Machine:
    return Machine(LOAN, guards={"g": lambda c, e, p: True}, delays={"slow": 1})


def test_mermaid(machine: Machine) -> None:
    assert to_mermaid(machine, {"draft": ["loan.submit (SUBMIT)"], "review.open": ["a.b"]}) == (
        "stateDiagram-v2\n"
        '    state "draft<br/>- loan.submit (SUBMIT)" as s1\n'
        '    state "review" as s2\n'
        "    state s2 {\n"
        '        state "open<br/>- a.b" as s3\n'
        '        state "ok" as s4\n'
        '        state "H*" as s5\n'
        "        [*] --> s3\n"
        "        s4 --> [*]\n"
        "    }\n"
        '    state "paid" as s6\n'
        "    [*] --> s1\n"
        "    s6 --> [*]\n"
        '    state "(any state)" as s0\n'
        "    s0 --> s1 : RESET\n"
        "    s1 --> s2 : SUBMIT\n"
        "    s2 --> s6 : done\n"
        "    s2 --> s1 : after 5000 ms\n"
        "    s2 --> s2 : after slow\n"
        "    s3 --> s4 : OK #91;g#93;\n"
        "    s3 --> s4 : always #91;#123;#34;not#34;#58; #34;g#34;#125;#93;\n"
    )


def test_dot(machine: Machine) -> None:
    dot = to_dot(machine, {"draft": ["loan.submit (SUBMIT)"]})
    assert dot.startswith('digraph "loan" {\n')
    assert dot.endswith("}\n")
    for line in (
        's1 [label="draft\\n- loan.submit (SUBMIT)"]',
        "subgraph cluster_s2 {",
        's4 [label="ok" peripheries=2]',
        's5 [label="H*" shape=circle]',
        "start_s0 -> s1",
        's0 [label="(any state)" shape=plaintext]',
        's0 -> s0 [label="PING / xstate.emit"]',
        's1 -> s3 [label="SUBMIT" lhead=cluster_s2]',
        's3 -> s6 [label="done" ltail=cluster_s2]',
        's3 -> s3 [label="after slow"]',
        's3 -> s4 [label="OK [g]"]',
    ):
        assert f"    {line}\n" in dot
    assert "NEVER" not in dot


def test_regions() -> None:
    region = {"initial": "a", "states": {"a": {}}}
    machine = Machine({"id": "m", "type": "parallel", "states": {"x": region, "y": region}})
    mermaid = to_mermaid(machine)
    assert mermaid.splitlines()[1:3] == ['    state "m" as s0', "    state s0 {"]
    assert mermaid.count("        --\n") == 1
    assert to_dot(machine).count("style=dashed") == 2


ODD = ['a"b', "a\\", "a\nb", "a;b", "a:b", "a-->b", "{", "}", "<b>", "#35;", "%%", "", "é", "状態", "end", "note"]


@pytest.mark.parametrize("name", ODD)
def test_no_name_breaks_the_syntax(name: str) -> None:
    machine = Machine(
        {"id": name or "m", "initial": name, "states": {name: {"on": {f"x{name}": "plain"}}, "plain": {}}}
    )
    labels = {name: [name], "plain": [f"{name}*/"]}
    mermaid = to_mermaid(machine, labels)
    text = r'"[^";:{}<>\n]*(?:<br/>[^";:{}<>\n]*)*"'
    forms = (
        r"stateDiagram-v2",
        r"    \[\*\] --> s\d+",
        r"    s\d+ --> \[\*\]",
        rf"    state {text} as s\d+",
        r"    s\d+ --> s\d+ : [^\n:{}<>]+",
    )
    line = re.compile("|".join(forms))
    for each in mermaid.splitlines():
        assert line.fullmatch(re.sub(r"#\d+;", "", each)), each
    quoted = re.compile(r'"(?:[^"\\\n]|\\.)*"')
    for each in to_dot(machine, labels).splitlines():
        assert '"' not in quoted.sub("", each), each
