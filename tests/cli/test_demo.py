"""The demo shows what it says, says so when it does not, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import clean_environment

pytestmark = pytest.mark.timeout(240)

MENU_OF = {
    "draft": "menu: invoice.submit, invoice.view",
    "review": "menu: invoice.submit, invoice.approve, invoice.reject, invoice.view",
    "approved": "menu: invoice.submit, invoice.discharge, invoice.view",
    "discharged": "menu: invoice.submit, invoice.view",
}
UNGATED_LIST = """
import sys
from mcpfusion.gate.binding import Bindings
Bindings.visible = lambda self, snapshot: frozenset(self.tools)
from mcpfusion.cli import demo_server
demo_server.main(*sys.argv[1:])
"""


def folder_in(transcript: str) -> Path:
    found = re.search(r"Store: +sqlite:///(\S+)", transcript)
    assert found
    return Path(found[1]).parent


def processes_using(folder: Path) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"MCPFUSION_DEMO={folder}\0".encode() in environment:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def assert_nothing_is_left(transcript: str) -> None:
    folder = folder_in(transcript)
    assert not folder.exists()
    assert processes_using(folder) == []


def scene(transcript: str, number: int) -> str:
    """The text of one scene, with the lines that were wrapped joined again."""
    part = transcript.split(f"\n{number}. ")[1].split(f"\n{number + 1}. ")[0]
    return " ".join(part.split())


@pytest.fixture(scope="module")
def transcript() -> str:
    result = subprocess.run(
        [sys.executable, "-m", "mcpfusion.cli.main", "demo"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=220,
    )
    assert result.stderr == ""
    assert result.returncode == 0
    return result.stdout


def test_the_transcript_is_plain_text_below_100_columns(transcript: str) -> None:
    assert "\x1b" not in transcript
    assert max(map(len, transcript.splitlines())) < 100
    assert "Traceback" not in transcript


def test_a_session_sees_each_menu_and_hears_that_it_changed(transcript: str) -> None:
    said = scene(transcript, 1)
    order = ["draft", "review", "draft", "review", "approved", "discharged"]
    assert re.findall(r"menu: (?:invoice\.\w+(?:, )?)+", said) == [MENU_OF[state] for state in order]
    assert said.count("< notifications/tools/list_changed") == len(order) - 1
    assert "FORBIDDEN: 'invoice.discharge' is not allowed while the workflow is in state 'draft'." in said
    assert "Allowed now: invoice.submit." in said
    assert "ALREADY_DONE" in said
    assert "The provider's books have 1 payment of INV-1." in said


def test_one_user_over_stdio_hears_by_listening(transcript: str) -> None:
    said = scene(transcript, 2)
    assert [said.count(MENU_OF[state]) for state in ("draft", "review", "approved")] == [1, 1, 1]
    assert said.count("< subscriptions/listen: notifications/tools/list_changed") == 2


def test_anonymous_callers_get_the_whole_list_and_the_gate_holds(transcript: str) -> None:
    said = scene(transcript, 3)
    assert "invoice.submit, invoice.approve, invoice.reject, invoice.discharge, invoice.view" in said
    assert "invoice.discharge: Works in state: approved." in said
    assert "FORBIDDEN" in said


def test_principals_have_menus_and_workflows_of_their_own(transcript: str) -> None:
    said = scene(transcript, 4)
    assert said.count("< subscriptions/listen: notifications/tools/list_changed") == 2
    bob = said.split("bob, who uses")[1].split("alice:")[0]
    assert MENU_OF["draft"] in bob
    assert "FORBIDDEN: 'invoice.approve' is not allowed while the workflow is in state 'draft'." in bob
    assert "bob's stream heard nothing" in said


def test_of_two_discharges_at_once_one_runs(transcript: str) -> None:
    said = scene(transcript, 5)
    assert said.count("> invoice.discharge INV-2") == 2
    assert said.count('"status":"paid"') == 1
    assert re.search(r"ALREADY_DONE|CONFLICT", said)
    assert "The provider's books have 1 payment of INV-2." in said


def test_a_killed_payment_is_in_doubt_until_an_operator_decides(transcript: str) -> None:
    killed, decided = scene(transcript, 6), scene(transcript, 7)
    assert re.search(r"IN_DOUBT: .* an operator has to look and resolve it", killed)
    assert decided.count("invoice.discharge in doubt") == 2
    assert "'INV-5': the step is done; the workflow stands in 'discharged'" in decided
    assert "'INV-6': the step is not done; the workflow stands in 'approved'" in decided
    after = decided.split("The workflows go on.")[1]
    assert "ALREADY_DONE" in after
    assert "INV-6 is in state discharged; next: nothing, it is final" in after
    assert "The provider's books have 1 payment of INV-5." in after
    assert "The provider's books have 1 payment of INV-6." in after


def test_nothing_is_left_behind(transcript: str) -> None:
    assert_nothing_is_left(transcript)


def test_it_fails_when_what_it_shows_is_not_so(tmp_path: Path) -> None:
    server = tmp_path / "ungated.py"
    server.write_text(UNGATED_LIST)
    code = (
        "import sys; from mcpfusion.cli import demo_stage\n"
        f"demo_stage._SERVER = (sys.executable, {str(server)!r})\n"
        "from mcpfusion.cli.main import main; sys.exit(main(['demo']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), timeout=120
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("mcpfusion: the demo failed: the menu is invoice.submit, invoice.approve")
    assert "as it should be" not in result.stdout
    assert_nothing_is_left(result.stdout)


@pytest.mark.skipif(os.name == "nt", reason="the signal is one of POSIX")
def test_it_cleans_up_when_it_is_told_to_stop() -> None:
    command = [sys.executable, "-u", "-m", "mcpfusion.cli.main", "demo"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    assert process.stdout
    seen = ""
    for line in process.stdout:
        seen += line
        if "INV-1" in line:
            break
    process.send_signal(signal.SIGTERM)
    rest, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint.strip()) == (130, "")
    assert_nothing_is_left(seen + rest)
