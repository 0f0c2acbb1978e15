"""A team's own statechart class gates, and what cannot be restored from a snapshot is refused at start-up."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpfusion import Fusion, MachineConfigError, UnknownStateError
from mcpfusion.engines.statechart_class import StatechartClass
from tests.support.serving import ERAS, sdk_client

from .charts import Approval, Asynchronous, Invoice, Needs, Remembers


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_a_statechart_class_gates(era: str, tmp_path: Path):
    f = Fusion("invoices")
    f.action("invoice.submit", bind_state=("draft", "submit")).handle(lambda: "submitted")

    @f.action("invoice.pay", bind_state=("review", "pay")).handle
    def pay(amount: int) -> str:
        return "paid"

    server = f.server(fsm=f.fsm(Invoice), store=f"sqlite:///{tmp_path}/i.db", state_handle_key="id")
    async with sdk_client(server.lowlevel, era) as client:
        assert (await client.call_tool("invoice.pay", {"id": "i", "amount": 9})).structured_content[
            "code"
        ] == "FORBIDDEN"
        assert not (await client.call_tool("invoice.submit", {"id": "i"})).is_error
        assert (await client.call_tool("invoice.pay", {"id": "i", "amount": 1})).structured_content[
            "code"
        ] == "FORBIDDEN"
        last = await client.call_tool("invoice.pay", {"id": "i", "amount": 9})
        assert last.meta["io.mcpfusion/workflow"] == {
            "handle": "i",
            "state": "paid",
            "allowedActions": [],
            "final": True,
        }


@given(st.lists(st.sampled_from(["legal_ok", "finance_ok", "nope"]), max_size=6))
def test_snapshots_of_a_class_round_trip_and_steps_agree_with_can(events: list[str]):
    engine = StatechartClass(Approval)
    snapshot = engine.initial()
    for event in events:
        assert engine.restore(json.loads(json.dumps(snapshot.to_json()))) == snapshot
        assert engine.restore_state(snapshot.state) == snapshot
        after = engine.transition(snapshot, event)
        assert engine.can(snapshot, event) == (after is not snapshot)
        snapshot = after
    if {"legal_ok", "finance_ok"} <= set(events):
        assert snapshot.state == "done"
        assert snapshot.final


@pytest.mark.parametrize(
    ("chart", "why"),
    [
        (Remembers, "history states"),
        (Asynchronous, "async callbacks"),
        (Needs, "without arguments"),
        (dict, "no StateChart"),
    ],
)
def test_what_cannot_be_restored_is_refused_at_start_up(chart: Any, why: str):
    with pytest.raises(MachineConfigError, match=why):
        Fusion("x").fsm(chart)


@pytest.mark.parametrize("value", ["nowhere", {"review": "legal"}, {"review": {"legal": "ok"}}, {}, 7, None])
def test_a_value_that_does_not_fit_is_refused(value: Any):
    with pytest.raises(UnknownStateError):
        StatechartClass(Approval).restore({"value": value})


def test_without_the_extra_it_says_what_to_install():
    code = (
        "import sys; sys.modules['statemachine'] = None\n"
        "from mcpfusion import Fusion, MachineConfigError\n"
        "try:\n    Fusion('x').fsm(object)\n"
        "except MachineConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "mcpfusion[statemachine]" in done.stdout


def test_an_engine_of_ones_own_needs_all_of_the_seam():
    class Half:
        def initial(self) -> None: ...

    with pytest.raises(MachineConfigError, match="is no engine: it has no transition"):
        Fusion("x").fsm(Half())
