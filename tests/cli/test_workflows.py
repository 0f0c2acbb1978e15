import getpass
import json
import re
import shlex
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpfusion.machine import Machine
from mcpfusion.stores.open import open_store
from mcpfusion.stores.protocol import Claim, LastStep, Step, Workflow

from .conftest import Cli, error_line

STORE = "sqlite:///shop.db"
CONFIG = {
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
        "approved": {"on": {"DISCHARGE": "discharged"}},
        "discharged": {"type": "final"},
    },
}
MACHINE = Machine(CONFIG)
T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z
SECRET = "4111-1111"
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")

Seed = Callable[..., Workflow]


def snapshot_in(state: str) -> dict[str, Any]:
    return MACHINE.restore_state(state).to_json()


def claim(**fields: Any) -> Claim:
    """A call of invoice.discharge whose lease has run out."""
    given: dict[str, Any] = {
        "call_id": "call-1",
        "idempotency_key": "key-1",
        "tool": "invoice.discharge",
        "event": "DISCHARGE",
        "principal": "alice",
        "digest": "d" * 64,
        "claimed_at": T0,
        "lease_until": T0 + 60,
        "on_doubt": "hold",
        "leads_to": snapshot_in("discharged"),
    }
    return Claim(**(given | fields))


def running(**fields: Any) -> Claim:
    return claim(claimed_at=time.time(), lease_until=time.time() + 600, **fields)


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    """Write one workflow into the store that the command is going to read."""

    def write(
        handle: str = "INV-7",
        state: str = "approved",
        scope: str = "",
        claim: Claim | None = None,
        last: LastStep | None = None,
        step: Step | None = None,
    ) -> Workflow:
        record = Workflow(
            scope=scope,
            handle=handle,
            id=f"id-{handle[:20]}",
            version=1,
            steps=3,
            state=state,
            snapshot=snapshot_in(state),
            updated_at=T0,
            claim=claim,
            last=last,
        )
        assert in_store(tmp_path, lambda store: store.write(record, expected_version=0, step=step))
        return record

    return write


def in_store(folder: Path, work: Callable[[Any], Any]) -> Any:
    async def main() -> Any:
        store = open_store(f"sqlite:///{folder}/shop.db")
        try:
            return await work(store)
        finally:
            await store.aclose()

    return anyio.run(main)


def stored(folder: Path, handle: str = "INV-7", scope: str = "") -> Workflow:
    return in_store(folder, lambda store: store.read(scope, handle))


def steps(folder: Path, handle: str = "INV-7", scope: str = "") -> list[Step]:
    return list(in_store(folder, lambda store: store.history(scope, handle)))


def rows(text: str) -> list[list[str]]:
    """The table's rows, cells parted where two or more blanks are."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]


class TestList:
    def test_a_table_with_one_line_for_each(self, cli: Cli, seed: Seed) -> None:
        seed("INV-2", "draft", scope="bob", claim=running(tool="invoice.submit"))
        seed("INV-1", "approved", claim=claim())
        result = cli("workflows", "list", "--store", STORE)
        assert result.returncode == 0
        assert rows(result.stdout) == [
            ["HANDLE", "SCOPE", "STATE", "STEPS", "MOVED", "CALL"],
            ["INV-1", "(everybody)", "approved", "3", "2026-01-01T00:00:00Z", "invoice.discharge in doubt"],
            ["INV-2", "bob", "draft", "3", "2026-01-01T00:00:00Z", "invoice.submit running"],
        ]

    def test_json(self, cli: Cli, seed: Seed) -> None:
        seed("INV-1", claim=claim())
        seed("INV-2", "draft", scope="bob")
        found = json.loads(cli("workflows", "list", "--store", STORE, "--json").stdout)
        assert [(w["scope"], w["handle"], w["state"], w["in_doubt"]) for w in found] == [
            ("", "INV-1", "approved", True),
            ("bob", "INV-2", "draft", False),
        ]
        assert found[0]["updated_at"] == "2026-01-01T00:00:00.000Z"
        assert found[0]["claim"]["tool"] == "invoice.discharge"
        assert found[0]["claim"]["idempotency_key"] == "key-1"
        assert found[1]["claim"] is None

    @pytest.mark.parametrize(
        ("options", "handles"),
        [
            ((), ["A", "B", "C", "D"]),
            (("--scope", ""), ["A", "B"]),
            (("--scope", "bob"), ["C", "D"]),
            (("--state", "draft"), ["B", "D"]),
            (("--in-doubt",), ["A"]),
            (("--in-doubt", "--scope", "bob"), []),
            (("--scope", "nobody"), []),
        ],
    )
    def test_filters(self, cli: Cli, seed: Seed, options: tuple[str, ...], handles: list[str]) -> None:
        seed("A", "approved", claim=claim())
        seed("B", "draft")
        seed("C", "review", scope="bob", claim=running())
        seed("D", "draft", scope="bob")
        result = cli("workflows", "list", "--store", STORE, "--json", *options)
        assert [w["handle"] for w in json.loads(result.stdout)] == handles

    def test_a_limit_says_that_there_are_more(self, cli: Cli, seed: Seed) -> None:
        for number in range(3):
            seed(f"INV-{number}")
        result = cli("workflows", "list", "--store", STORE, "--limit", "2")
        assert len(rows(result.stdout)) == 1 + 2
        assert result.stderr == "the first 2; there are more (--limit)\n"
        assert cli("workflows", "list", "--store", STORE, "--limit", "3").stderr == ""

    def test_more_than_one_page(self, cli: Cli, tmp_path: Path) -> None:
        async def write(store: Any) -> None:
            for number in range(1203):
                record = Workflow("", f"W{number:05}", "i", 1, 0, "draft", snapshot_in("draft"), T0)
                await store.write(record, expected_version=0)

        in_store(tmp_path, write)
        result = cli("workflows", "list", "--store", STORE, "--json", "--limit", "1201")
        assert [w["handle"] for w in json.loads(result.stdout)] == [f"W{n:05}" for n in range(1201)]
        assert "more" in result.stderr

    def test_none_is_no_error(self, cli: Cli, seed: Seed) -> None:
        seed()
        result = cli("workflows", "list", "--store", STORE, "--state", "nowhere")
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "no workflows\n")

    def test_a_handle_cannot_give_orders_to_the_terminal(self, cli: Cli, seed: Seed) -> None:
        seed("\x1b]0;owned\x07[red]\n\u202e", scope="a\tb")
        seed("straße-日本")
        result = cli("workflows", "list", "--store", STORE, PYTHONIOENCODING="utf-8")
        assert "\\x1b]0;owned\\x07[red]\\n\\u202e" in result.stdout
        assert "a\\tb" in result.stdout
        assert "straße-日本" in result.stdout
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", result.stdout)

    def test_the_store_can_come_from_the_environment(self, cli: Cli, seed: Seed) -> None:
        seed()
        assert "INV-7" in cli("workflows", "list", MCPFUSION_STORE=STORE).stdout


class TestShow:
    STEP = Step(
        scope="alice",
        handle="INV-7",
        from_state="review",
        to_state="approved",
        event="APPROVE",
        tool="invoice.approve",
        principal="carol",
        call_id="call-0",
        at=T0,
        outcome="committed",
        arguments={"card": SECRET},
        result={"card": SECRET},
    )
    LAST = LastStep(
        call_id="call-0",
        tool="invoice.approve",
        digest="e" * 64,
        principal="carol",
        committed_at=T0,
        result={"content": [{"type": "text", "text": SECRET}]},
        keep_until=T0 + 5,
    )

    def test_where_it_stands_who_holds_it_and_what_it_did(self, cli: Cli, seed: Seed) -> None:
        seed(scope="alice", claim=claim(), last=self.LAST, step=self.STEP)
        result = cli("workflows", "show", "INV-7", "--store", STORE)
        assert result.returncode == 0
        shown = rows(result.stdout)
        for field in (
            ["scope", "alice"],
            ["state", "approved"],
            ["moved", "2026-01-01T00:00:00Z"],
            ["call", "invoice.discharge in doubt"],
            ["event", "DISCHARGE"],
            ["idempotency key", "key-1"],
            ["lease until", "2026-01-01T00:01:00Z"],
            ["on doubt", "hold"],
            ["last step", "invoice.approve at 2026-01-01T00:00:00Z"],
            ["result kept", "until 2026-01-01T00:00:05Z"],
        ):
            assert field in shown
        moved = ["review", "APPROVE", "approved"]
        assert shown[-1] == [
            "2026-01-01T00:00:00Z", *moved, "invoice.approve", "carol", "committed", "call-0",
        ]  # fmt: skip
        assert SECRET not in result.stdout

    def test_json_never_has_a_kept_result(self, cli: Cli, seed: Seed) -> None:
        seed(scope="alice", claim=claim(event=None, leads_to=None), last=self.LAST, step=self.STEP)
        shown = json.loads(cli("workflows", "show", "INV-7", "--store", STORE, "--json").stdout)
        assert shown["snapshot"] == snapshot_in("approved")
        assert shown["last"]["result_kept"] is True
        assert SECRET not in json.dumps(shown | {"history": []})
        # The history has what the server's own redaction hook let through.
        assert shown["history"][0]["arguments"] == {"card": SECRET}
        assert (shown["history"][0]["from"], shown["history"][0]["to"]) == ("review", "approved")
        assert shown["claim"]["event"] is None

    def test_one_handle_in_several_scopes(self, cli: Cli, seed: Seed) -> None:
        seed(state="draft")
        seed(state="review", scope="alice's team")
        line = error_line(cli("workflows", "show", "INV-7", "--store", STORE))
        assert line.startswith("2 scopes have a workflow 'INV-7'; say which one: ")
        options = shlex.split(line.rpartition("one: ")[2].replace(",", ""))
        assert options == ["--scope", "", "--scope", "alice's team"]
        for scope, state in (("", "draft"), ("alice's team", "review")):
            result = cli("workflows", "show", "INV-7", "--store", STORE, "--scope", scope, "--json")
            assert json.loads(result.stdout)["state"] == state

    @pytest.mark.parametrize(
        ("options", "where"),
        [
            ((), ""),
            (("--scope", "bob"), " in scope 'bob'"),
            (("--scope", ""), " in the scope that everybody shares"),
        ],
    )
    def test_no_such_workflow(self, cli: Cli, seed: Seed, options: tuple[str, ...], where: str) -> None:
        seed(scope="alice")
        handle = "INV-8" if not options else "INV-7"
        line = error_line(cli("workflows", "show", handle, "--store", STORE, *options))
        assert line == f"no workflow {handle!r}{where}"


class TestResolve:
    def test_done_moves_it_as_the_call_would_have(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        before = seed(claim=claim())
        result = cli("workflows", "resolve", "INV-7", "--done", "--store", STORE)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == "'INV-7': the step is done; the workflow stands in 'discharged'\n"
        after = stored(tmp_path)
        assert (after.state, after.snapshot, after.claim) == ("discharged", snapshot_in("discharged"), None)
        assert (after.version, after.steps) == (before.version + 1, before.steps + 1)
        assert after.last is not None
        assert (after.last.tool, after.last.digest) == ("invoice.discharge", "d" * 64)
        (step,) = steps(tmp_path)
        assert (step.from_state, step.to_state, step.outcome) == ("approved", "discharged", "resolved_done")
        assert step.principal == getpass.getuser()
        assert abs(step.at - time.time()) < 60

    def test_not_done_leaves_it_and_frees_it(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        before = seed(claim=running(in_doubt=True))
        result = cli("workflows", "resolve", "INV-7", "--not-done", "--store", STORE)
        assert result.stdout == "'INV-7': the step is not done; the workflow stands in 'approved'\n"
        after = stored(tmp_path)
        assert after == replace(before, version=before.version + 1, claim=None)
        assert steps(tmp_path)[0].outcome == "resolved_not_done"

    @pytest.mark.parametrize("how", ["--done", "--not-done"])
    @pytest.mark.parametrize(
        ("held", "said"),
        [(None, "no step of workflow 'INV-7' is in doubt"), (running(), "'invoice.discharge' is still")],
        ids=["free", "running"],
    )
    def test_only_what_is_in_doubt(
        self, cli: Cli, seed: Seed, tmp_path: Path, how: str, held: Claim | None, said: str
    ) -> None:
        before = seed(claim=held)
        assert said in error_line(cli("workflows", "resolve", "INV-7", how, "--store", STORE))
        assert stored(tmp_path) == before
        assert steps(tmp_path) == []

    def test_a_result_that_decides_needs_machine_and_event(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        before = seed(state="review", claim=claim(tool="invoice.decide", event=None, leads_to=None))
        (tmp_path / "invoice.json").write_text(json.dumps(CONFIG))
        resolve = ("workflows", "resolve", "INV-7", "--done", "--store", STORE)
        by_file = ("--machine", "invoice.json")
        for options in ((), by_file, ("--event", "REJECT")):
            line = error_line(cli(*resolve, *options))
            assert line.startswith("the result of 'invoice.decide' decides its event; say which it was: --event")
        line = error_line(cli(*resolve, *by_file, "--event", "DISCHARGE"))
        assert line == "state 'review' takes no event 'DISCHARGE' (it takes: APPROVE, REJECT)"
        assert stored(tmp_path) == before
        assert cli(*resolve, *by_file, "--event", "REJECT").returncode == 0
        assert stored(tmp_path).snapshot == snapshot_in("draft")
        assert [(step.event, step.outcome) for step in steps(tmp_path)] == [("REJECT", "resolved_done")]

    def test_an_event_that_the_step_does_not_send(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        before = seed(claim=claim())
        result = cli("workflows", "resolve", "INV-7", "--done", "--event", "REJECT", "--store", STORE)
        assert error_line(result) == "the step sends 'DISCHARGE', not 'REJECT'"
        assert stored(tmp_path) == before

    def test_a_machine_that_the_workflow_does_not_fit(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        seed(claim=claim())
        (tmp_path / "other.json").write_text('{"initial": "a", "states": {"a": {}}}')
        options = ("--done", "--machine", "other.json", "--store", STORE)
        assert "approved" in error_line(cli("workflows", "resolve", "INV-7", *options))

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ((), "say how the step ended: --done or --not-done"),
            (("--not-done", "--event", "X"), "--event and --machine go with --done"),
            (("--not-done", "--machine", "m.json"), "--event and --machine go with --done"),
        ],
    )
    def test_usage(self, cli: Cli, options: tuple[str, ...], said: str) -> None:
        assert said in error_line(cli("workflows", "resolve", "INV-7", "--store", STORE, *options), 2)


class TestReset:
    RESET = ("workflows", "reset", "INV-7", "--store", STORE, "--machine", "invoice.json")

    @pytest.fixture(autouse=True)
    def machine(self, tmp_path: Path) -> None:
        (tmp_path / "invoice.json").write_text(json.dumps(CONFIG))

    def test_back_to_the_initial_state(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        before = seed(claim=claim(), last=TestShow.LAST)
        result = cli(*self.RESET, "--yes")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == "'INV-7': the workflow stands in 'draft'\n"
        after = stored(tmp_path)
        assert (after.state, after.snapshot) == ("draft", MACHINE.initial().to_json())
        assert (after.claim, after.last) == (None, None)
        assert after.id != before.id
        (step,) = steps(tmp_path)
        assert (step.from_state, step.to_state, step.outcome) == ("approved", "draft", "reset")
        assert step.principal == getpass.getuser()

    def test_to_another_state(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        seed()
        assert cli(*self.RESET, "--yes", "--state", "review").returncode == 0
        assert stored(tmp_path).snapshot == snapshot_in("review")

    def test_to_a_state_that_the_machine_does_not_have(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        before = seed()
        assert "'reviw'" in error_line(cli(*self.RESET, "--yes", "--state", "reviw"), 2)
        assert stored(tmp_path) == before

    @pytest.mark.parametrize(("answer", "moved"), [("y\n", True), ("n\n", False), ("\n", False), (None, False)])
    def test_it_asks(self, cli: Cli, seed: Seed, tmp_path: Path, answer: str | None, moved: bool) -> None:
        before = seed(claim=claim())
        result = cli(*self.RESET, input=answer)
        asked = "Reset 'INV-7' of (everybody) from 'approved' (invoice.discharge in doubt) to 'draft'?"
        assert result.stderr.startswith(asked)
        if moved:
            assert result.returncode == 0
            assert stored(tmp_path).state == "draft"
        else:
            assert result.returncode == 1
            assert "mcpfusion: aborted" in result.stderr
            assert stored(tmp_path) == before

    def test_the_machine_can_be_python_code(self, cli: Cli, seed: Seed, tmp_path: Path) -> None:
        seed()
        (tmp_path / "server.py").write_text(
            "import sys\nfrom mcpfusion.gate.gate import StateMachineGate\n"
            f"invoices = StateMachineGate({CONFIG!r})\n"
            "machine_of_it = invoices.machine\n"
        )
        assert cli(*self.RESET[:-1], "server.py", "--yes").returncode == 0
        assert stored(tmp_path).state == "draft"

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("bad.json", "{", "bad.json"),
            ("bad.json", '{"initial": "a", "states": {"b": {}}}', "'a'"),
            ("bad.yaml", "initial: a\nstates: {a: {on: {GO: c}}}\n", "states.a.on.GO"),
            ("bad.py", "x = 1\n", "bad.py has no machine"),
            ("bad.py", "raise RuntimeError('no')", "cannot load bad.py: line 1: RuntimeError: no"),
        ],
    )
    def test_a_machine_that_is_none(
        self, cli: Cli, seed: Seed, tmp_path: Path, name: str, content: str, said: str
    ) -> None:
        before = seed()
        (tmp_path / name).write_text(content)
        assert said in error_line(cli(*self.RESET[:-1], name, "--yes"))
        assert stored(tmp_path) == before

    def test_no_machine_file(self, cli: Cli) -> None:
        assert "no file 'nowhere.json'" in error_line(cli(*self.RESET[:-1], "nowhere.json", "--yes"), 2)


class TestStore:
    @pytest.mark.parametrize("command", [("list",), ("show", "X"), ("resolve", "X", "--done")])
    def test_a_file_that_is_not_there_is_not_made(self, cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
        assert "shop.db" in error_line(cli("workflows", *command, "--store", STORE))
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_store(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "shop.db").write_text("not a database, not at all" * 100)
        error_line(cli("workflows", "list", "--store", STORE))

    def test_a_database_of_something_else_stays_as_it_is(self, cli: Cli, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("CREATE TABLE workflow (id INTEGER PRIMARY KEY)")
        error_line(cli("workflows", "list", "--store", STORE))

    @pytest.mark.parametrize("url", ["memory://", "sqlite://shop.db", "shop.db", "mysql://u:hunter2@h/db", ""])
    def test_a_url_that_names_no_store_to_look_into(self, cli: Cli, url: str) -> None:
        line = error_line(cli("workflows", "list", "--store", url), 2)
        assert "--store" in line
        assert "hunter2" not in line


class TestPrune:
    def expiring(self, tmp_path: Path, handle: str, expires_at: float | None, **fields: Any) -> None:
        given = {"state": "approved", "updated_at": T0, "claim": None, **fields}
        record = Workflow(
            "", handle, "id", 1, 3, snapshot=snapshot_in(given["state"]), expires_at=expires_at, **given
        )
        history = Step("", handle, "draft", "review", None, "t", None, "c", T0, "committed")
        assert in_store(tmp_path, lambda store: store.write(record, expected_version=0, step=history))

    def left(self, tmp_path: Path) -> list[str]:
        return [each.handle for each in in_store(tmp_path, lambda store: store.list_workflows())]

    def test_what_expired_a_day_ago_is_removed_with_its_history(self, cli: Cli, tmp_path: Path) -> None:
        now = time.time()
        self.expiring(tmp_path, "gone", now - 90_000)
        self.expiring(tmp_path, "yesterday", now - 3_700)
        self.expiring(tmp_path, "to come", now + 1_000)
        self.expiring(tmp_path, "endless", None)
        self.expiring(tmp_path, "held", 5.0, claim=claim())
        self.expiring(tmp_path, "free", 5.0, claim=claim(on_doubt="retry"))
        would = cli("workflows", "prune", "--dry-run", "--json", "--store", STORE)
        assert json.loads(would.stdout) == {"expired": 2, "old": 0, "dry_run": True}
        assert len(self.left(tmp_path)) == 6
        result = cli("workflows", "prune", "--store", STORE)
        assert (result.returncode, result.stdout) == (0, "2 expired: removed\n")
        assert self.left(tmp_path) == ["endless", "held", "to come", "yesterday"]
        assert steps(tmp_path, "gone") == []
        result = cli("workflows", "prune", "--expired-for", "1h", "--json", "--store", STORE)
        assert json.loads(result.stdout) == {"expired": 1, "old": 0, "dry_run": False}
        assert self.left(tmp_path) == ["endless", "held", "to come"]

    def test_what_has_not_moved_for_long_goes_too_if_asked(self, cli: Cli, tmp_path: Path) -> None:
        now = time.time()
        for number in range(501):  # more than a page
            self.expiring(tmp_path, f"old {number:03}", None, state="discharged")
        self.expiring(tmp_path, "in review", now + 1e6, state="review")
        self.expiring(tmp_path, "new", now + 1e6, updated_at=now, state="discharged")
        self.expiring(tmp_path, "held", None, claim=claim(), state="discharged")
        older = ("workflows", "prune", "--older-than", "30d", "--store", STORE)
        would = cli(*older, "--state", "discharged", "--dry-run")
        assert would.stdout == "0 expired, and 501 that had not moved: would be removed\n"
        assert cli(*older, "--state", "discharged").stdout == "0 expired, and 501 that had not moved: removed\n"
        assert self.left(tmp_path) == ["held", "in review", "new"]
        assert json.loads(cli(*older, "--json").stdout) == {"expired": 0, "old": 1, "dry_run": False}
        assert self.left(tmp_path) == ["held", "new"]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--state", "paid"), "--state goes with --older-than"),
            (("--older-than", "30"), "'30': expected a number and s, m, h, d or w, such as 24h or 30d"),
            (("--expired-for", "a day"), "'a day': expected a number"),
        ],
    )
    def test_wrong_usage(self, cli: Cli, options: tuple[str, ...], said: str) -> None:
        assert said in error_line(cli("workflows", "prune", *options, "--store", STORE), 2)

    def test_show_says_when_a_workflow_expires(self, cli: Cli, tmp_path: Path) -> None:
        self.expiring(tmp_path, "INV-7", T0 + 60)
        assert ["expires", "2026-01-01T00:01:00Z"] in rows(cli("workflows", "show", "INV-7", "--store", STORE).stdout)
        shown = json.loads(cli("workflows", "show", "INV-7", "--json", "--store", STORE).stdout)
        assert shown["expires_at"] == "2026-01-01T00:01:00.000Z"


class TestScopesThatArePrincipals:
    def test_the_subject_alone_names_the_scope(self, cli: Cli, seed: Seed) -> None:
        seed(scope='["app",null,"alice"]')
        seed(scope='["app",null,"bob"]')
        shown = cli("workflows", "show", "INV-7", "--scope", "alice", "--json", "--store", STORE)
        assert json.loads(shown.stdout)["scope"] == '["app",null,"alice"]'
        line = error_line(cli("workflows", "show", "INV-7", "--scope", "ali", "--store", STORE))
        assert line == "no workflow 'INV-7' in scope 'ali'"

    def test_a_scope_of_that_very_name_comes_first_and_two_subjects_are_too_many(self, cli: Cli, seed: Seed) -> None:
        show = ("workflows", "show", "INV-7", "--scope", "alice", "--store", STORE)
        seed(scope='["app",null,"alice"]')
        seed(scope='["desk","https://login.example.com","alice"]')
        said = error_line(cli(*show))
        assert said.startswith("2 scopes have a workflow 'INV-7'; say which one: --scope '[\"app\",null,\"alice\"]'")
        seed(scope="alice")
        assert json.loads(cli(*show, "--json").stdout)["scope"] == "alice"
