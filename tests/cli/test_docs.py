"""docs/cli.md says what the command does: its sessions are run, its usage lines and options are compared."""

import doctest
import re
import shlex
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import anyio
import click
import pytest

from mcpfusion.cli.app import app
from mcpfusion.machine import Machine, read_config
from mcpfusion.stores.open import open_store
from mcpfusion.stores.protocol import Claim, LastStep, Step, VersionedFsmStateStore, Workflow

from .conftest import Cli

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
STATES = """
initial: draft
states:
  draft: {on: {SUBMIT: review}}
  review: {on: {APPROVE: approved}}
  approved: {on: {DISCHARGE: discharged}}
  discharged: {type: final}
"""


def at(time: str) -> float:
    return datetime.fromisoformat(f"2026-01-01T{time}+00:00").timestamp()


async def fill(store: VersionedFsmStateStore, machine: Machine) -> None:
    """Write the workflows that the sessions in the docs are about."""

    async def write(record: Workflow, *steps: Step) -> None:
        for number in range(record.version):
            step = steps[number] if number < len(steps) else None
            assert await store.write(replace(record, version=number + 1), expected_version=number, step=step)

    def record(handle: str, state: str, time: str, version: int, steps: int, scope: str = "") -> Workflow:
        snapshot = machine.restore_state(state).to_json()
        return Workflow(scope, handle, "0f9c2a6be1d84c37", version, steps, state, snapshot, at(time))

    claim = Claim(
        call_id="c3",
        idempotency_key="k3",
        tool="invoice.discharge",
        event="DISCHARGE",
        principal="alice",
        digest="d",
        claimed_at=at("10:08:00"),
        lease_until=at("10:09:05"),
        on_doubt="hold",
        leads_to=machine.restore_state("discharged").to_json(),
    )
    submit = Step(
        "", "INV-7", "draft", "review", "SUBMIT", "invoice.submit", "alice", "c1", at("10:01:00"), "committed"
    )
    approve = Step(
        "", "INV-7", "review", "approved", "APPROVE", "invoice.approve", "carol", "c2", at("10:05:00"), "committed"
    )
    last = LastStep("c2", "invoice.approve", "d", "carol", at("10:05:00"))
    held = replace(record("INV-7", "approved", "10:05:00", 5, 2), claim=claim, last=last)
    await write(held, submit, approve)
    await write(record("INV-8", "draft", "10:06:00", 1, 0))
    await write(record("INV-8", "review", "10:07:00", 2, 1, scope="acme"))


def sessions() -> list[tuple[str, str]]:
    """The commands in the docs' console blocks, each with what it prints, in order."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_the_sessions_go_as_the_docs_say(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "invoice.yaml").write_text(STATES)

    async def main() -> None:
        store = open_store(f"sqlite:///{tmp_path}/invoices.db")
        await fill(store, Machine(read_config(tmp_path / "invoice.yaml")))
        await store.aclose()

    anyio.run(main)
    checker, how = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert len(sessions()) >= 7
    for command, expected in sessions():
        program, *arguments = shlex.split(command)
        assert program == "mcpfusion"
        result = cli(*arguments)
        assert checker.check_output(expected, result.stdout + result.stderr, how), (command, result)


def commands(group: click.Group, prefix: str = "mcpfusion") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, f"{prefix} {name}")
        else:
            found[f"{prefix} {name}"] = command
    return found


@pytest.mark.parametrize("name", commands(app))
def test_the_usage_lines_name_every_option_and_no_other(name: str) -> None:
    command = commands(app)[name]
    usage = [line for line in DOCS.splitlines() if line.startswith(f"{name} ") or line == name]
    said = set(re.findall(r"--[a-z-]+", "\n".join(usage)))
    options = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert usage
    assert said == options


@pytest.mark.parametrize("name", commands(app))
def test_the_examples_in_the_help_are_understood(name: str) -> None:
    help = commands(app)[name].help or ""
    examples = [line.strip() for line in help.splitlines() if line.strip().startswith("mcpfusion ")]
    assert examples
    for example in examples:
        arguments = shlex.split(example)
        assert " ".join(arguments[: name.count(" ") + 1]) == name
        command = commands(app)[name]
        command.make_context(name, arguments[name.count(" ") + 1 :])
