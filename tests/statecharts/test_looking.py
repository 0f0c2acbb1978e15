"""`mcpfusion check` and `mcpfusion graph`, as commands."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "invoices.py"

BAD = """
id: bad
initial: a
states:
  a: {on: {GO: b, X: [c, d]}}
  b: {always: c}
  c: {always: b}
  d: {}
  e: {on: {BACK: a}}
"""

TOOLS = """
from mcpfusion import Fusion
f = Fusion("t")
gate = f.fsm({"id": "t", "initial": "a", "states": {
    "a": {"on": {"GO": "b", "SKIP": "c"}}, "b": {"on": {"GO": "c"}}, "c": {"type": "final"},
    "lost": {"on": {"UP": "a"}}}})
f.action("t.go", bind_state=("a", "GO")).handle(lambda: "")
f.action("t.lost", bind_state=("lost", "UP")).handle(lambda: "")
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcpfusion.cli.main", *args], capture_output=True, text=True, timeout=120, check=False
    )


def codes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {each["where"]: each["code"] for each in json.loads(done.stdout)}


def test_an_example_has_nothing_wrong():
    done = run("check", str(EXAMPLE))
    assert (done.returncode, done.stdout) == (0, "0 errors, 0 warnings\n")


def test_dead_states_shadowed_candidates_and_endless_loops_are_found(tmp_path: Path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    done = run("check", str(file), "--json")
    assert done.returncode == 1
    assert codes(done) == {
        "states.d": "no-way-out",
        "states.e": "unreachable-state",
        "states.a.on.X": "shadowed-candidate",
        "states.b.always": "always-loop",
    }
    text = run("check", str(file))
    assert f"{file}: states.d: error:" in text.stdout
    assert "fix: " in text.stdout


def test_tools_that_nobody_sees_and_events_that_nobody_sends_are_found(tmp_path: Path):
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    done = run("check", str(file), "--json")
    assert done.returncode == 1
    assert codes(done) == {
        "states.lost": "unreachable-state",
        "tool t.lost": "never-visible",
        "states.a.on.SKIP": "event-never-sent",
        "states.b.on.GO": "never-triggered",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"initial": "q", "states": {"a": {}}}', "no state 'q'"),
        ("{not json", "JSON"),
    ],
)
def test_a_config_that_is_refused_is_a_finding(tmp_path: Path, text: str, message: str):
    file = tmp_path / "x.json"
    file.write_text(text)
    done = run("check", str(file), "--json")
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stderr


def test_a_binding_to_a_state_that_there_is_not_is_a_finding(tmp_path: Path):
    file = tmp_path / "s.py"
    file.write_text(TOOLS.replace('("a", "GO")', '("aa", "GO")') + "server = f.server(fsm=gate)\n")
    done = run("check", str(file))
    assert done.returncode == 1
    assert "t.go" in done.stdout
    assert "did you mean" in done.stdout


def test_the_graph_has_the_tools_on_their_states():
    mermaid = run("graph", str(EXAMPLE)).stdout
    assert mermaid.startswith("stateDiagram-v2\n")
    assert "invoice.discharge (DISCHARGE)" in mermaid
    dot = run("graph", str(EXAMPLE), "--format", "dot").stdout
    assert dot.startswith('digraph "invoice" {')
    assert "invoice.discharge (DISCHARGE)" in dot


def test_the_picture_is_laid_out(tmp_path: Path):
    file = tmp_path / "invoice.svg"
    done = run("graph", str(EXAMPLE), "--format", "svg", "--output", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    texts = {text.text for text in ET.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text")}
    assert {"draft", "review", "approved", "discharged", "SUBMIT", "- invoice.discharge (DISCHARGE)"} <= texts
