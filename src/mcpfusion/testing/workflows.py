"""What every `VersionedFsmStateStore` must do with single workflows, sentence by sentence of the protocol."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import anyio
import pytest

from mcpfusion.stores import StoreError, VersionedFsmStateStore
from mcpfusion.testing.records import add, claim, last, step, workflow

ODD_NAMES = {
    "empty": "",
    "space": " ",
    "quotes": "'; DROP TABLE workflow; -- \"",
    "unicode": "рахунок-№7 🧾 عربى",
    "combining": "e\u0301",
    "precomposed": "\u00e9",
    "NUL": "a\0b",
    "NUL only": "\0",
    "newline": "a\nb\r\n",
    "percent": "100% _ * ?",
    "1 kB": "x" * 1024,
    "1 kB unicode": "ж" * 512,
    "astral": "\U0010ffff",
    "number": "1",
    "number with zeros": "01",
    "dunder": "__class__",
}


class RecordsContract:
    """What is written is read, once, by everybody."""

    pytestmark = pytest.mark.anyio

    async def test_it_is_a_versioned_store(self, store: VersionedFsmStateStore):
        assert isinstance(store, VersionedFsmStateStore)

    # read

    async def test_reads_none_for_what_was_never_written(self, store: VersionedFsmStateStore):
        assert await store.read("ann", "INV-1") is None
        await add(store, workflow())
        assert await store.read("ann", "INV-2") is None
        assert await store.read("bob", "INV-1") is None
        assert await store.read("", "INV-1") is None

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"claim": claim(in_doubt=True, opens=True)},
            {"claim": claim(event=None, principal=None, on_doubt="retry"), "last": last()},
            {"last": last(result=None, keep_until=0.0)},
            {"due": 1e9 + 0.1, "expires_at": 0.1 + 0.2, "claim": claim()},
            {"due": 1010.5, "expires_at": 2000.25},
            {"snapshot": {}, "state": "", "id": "", "steps": 12_345_678_901, "updated_at": 0.1 + 0.2},
            {"snapshot": {"a": {"b": [{"c": "\ud800 \0 \u2028"}]}, "big": 2**80, "tiny": 5e-324}},
            {"state": '{"review":{"legal":"ok"}}', "snapshot": {"value": {"review": {"legal": "ok"}}}},
        ],
    )
    async def test_reads_what_was_written(self, store: VersionedFsmStateStore, fields: dict[str, Any]):
        written = workflow(**fields)
        await add(store, written)
        assert await store.read("ann", "INV-1") == written

    async def test_a_record_is_nobody_elses_to_change(self, store: VersionedFsmStateStore):
        data: dict[str, Any] = {"value": "draft", "context": {"items": [1]}}
        await add(store, workflow(snapshot=data))
        data["context"]["items"].append("by the writer")
        first = await store.read("ann", "INV-1")
        assert first is not None
        assert first.snapshot == {"value": "draft", "context": {"items": [1]}}
        cast("dict[str, Any]", first.snapshot)["context"]["items"].append("by a reader")
        second = await store.read("ann", "INV-1")
        assert second is not None
        assert second.snapshot == {"value": "draft", "context": {"items": [1]}}

    async def test_mappings_that_are_no_dicts_are_kept(self, store: VersionedFsmStateStore):
        class Frozen(Mapping[str, Any]):
            def __getitem__(self, key: str) -> Any:
                return {"value": "draft"}[key]

            def __iter__(self):
                return iter(["value"])

            def __len__(self) -> int:
                return 1

        await add(store, workflow(snapshot={"context": Frozen()}))
        found = await store.read("ann", "INV-1")
        assert found is not None
        assert found.snapshot == {"context": {"value": "draft"}}

    # write

    async def test_a_first_write_expects_version_0(self, store: VersionedFsmStateStore):
        assert await store.write(workflow(version=1), expected_version=0, step=step())
        assert not await store.write(workflow(version=1, id="w2"), expected_version=0, step=step())
        found = await store.read("ann", "INV-1")
        assert found is not None
        assert found.id == "w1"
        assert len(await store.history("ann", "INV-1")) == 1

    async def test_a_write_needs_the_version_that_is_stored(self, store: VersionedFsmStateStore):
        await add(store, workflow(version=1))
        for stale in (0, 2, 3, 17):
            refused = workflow(version=stale + 1, id="refused")
            assert not await store.write(refused, expected_version=stale, step=step())
        assert (await store.read("ann", "INV-1")) == workflow(version=1)
        assert await store.history("ann", "INV-1") == []
        assert await store.write(workflow(version=2, id="w2"), expected_version=1)
        assert (await store.read("ann", "INV-1")) == workflow(version=2, id="w2")

    async def test_a_missing_record_has_no_version_but_0(self, store: VersionedFsmStateStore):
        assert not await store.write(workflow(version=2), expected_version=1, step=step())
        assert await store.read("ann", "INV-1") is None
        assert await store.history("ann", "INV-1") == []

    async def test_the_same_handle_in_another_scope_is_another_workflow(self, store: VersionedFsmStateStore):
        await add(store, workflow(scope="ann"), workflow(scope="bob", id="w2"))
        assert await store.write(workflow(scope="bob", version=2, id="w2"), expected_version=1)
        assert await store.read("ann", "INV-1") == workflow(scope="ann")

    async def test_of_many_writers_one_wins(self, store: VersionedFsmStateStore):
        won: list[str] = []

        async def attempt(version: int, name: str) -> None:
            ours = workflow(version=version + 1, id=name)
            if await store.write(ours, expected_version=version, step=step(call_id=name)):
                won.append(name)

        for version in range(5):
            async with anyio.create_task_group() as tasks:
                for writer in range(40):
                    tasks.start_soon(attempt, version, f"{version}/{writer}")
            found = await store.read("ann", "INV-1")
            assert found is not None
            assert (found.version, found.id) == (version + 1, won[-1])
            assert len(won) == version + 1
        assert [each.call_id for each in await store.history("ann", "INV-1")] == won

    async def test_writers_of_different_workflows_all_win(self, store: VersionedFsmStateStore):
        won: list[bool] = []

        async def attempt(number: int) -> None:
            ours = workflow(handle=f"INV-{number:03}")
            won.append(await store.write(ours, expected_version=0, step=step(handle=ours.handle)))

        async with anyio.create_task_group() as tasks:
            for number in range(150):
                tasks.start_soon(attempt, number)
        assert won == [True] * 150
        for number in range(150):
            assert len(await store.history("ann", f"INV-{number:03}")) == 1

    @pytest.mark.parametrize(("version", "expected"), [(1, 1), (3, 1), (0, 0), (0, -1), (1, 2)])
    async def test_a_version_that_does_not_follow_is_a_mistake(
        self, store: VersionedFsmStateStore, version: int, expected: int
    ):
        with pytest.raises(ValueError, match="does not follow"):
            await store.write(workflow(version=version), expected_version=expected)

    async def test_a_step_of_another_workflow_is_a_mistake(self, store: VersionedFsmStateStore):
        for other in (step(handle="INV-2"), step(scope="bob")):
            with pytest.raises(ValueError, match="another workflow"):
                await store.write(workflow(), expected_version=0, step=other)
        assert await store.read("ann", "INV-1") is None

    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"snapshot": {"value": object()}}, "snapshot"),
            ({"snapshot": {"n": float("nan")}}, "snapshot"),
            ({"snapshot": {"n": float("inf")}}, "snapshot"),
            ({"snapshot": ["draft"]}, "snapshot"),
            ({"updated_at": float("nan")}, "updated_at"),
            ({"expires_at": float("inf")}, "expires_at"),
            ({"steps": -1}, "steps"),
            ({"steps": True}, "steps"),
            ({"state": "\ud800"}, "state"),
            ({"claim": claim(lease_until=float("inf"))}, "claim.lease_until"),
            ({"claim": claim(on_doubt="perhaps")}, "claim.on_doubt"),
            ({"last": last(result={"a": {1, 2}})}, "last"),
        ],
    )
    async def test_what_cannot_be_kept_is_refused_whole(
        self, store: VersionedFsmStateStore, fields: dict[str, Any], named: str
    ):
        with pytest.raises(StoreError, match=rf"field {named} "):
            await store.write(workflow(**fields), expected_version=0, step=step())
        assert await store.read("ann", "INV-1") is None
        assert await store.history("ann", "INV-1") == []

    async def test_a_step_that_cannot_be_kept_leaves_no_record(self, store: VersionedFsmStateStore):
        with pytest.raises(StoreError, match="field arguments"):
            await store.write(workflow(), expected_version=0, step=step(arguments={"when": object()}))
        assert await store.read("ann", "INV-1") is None
        assert await store.write(workflow(), expected_version=0, step=step())

    async def test_a_cancelled_write_happens_or_does_not(self, store: VersionedFsmStateStore):
        for number in range(20):
            handle = f"INV-{number}"
            async with anyio.create_task_group() as tasks:
                write = partial(store.write, expected_version=0, step=step(handle=handle))
                for _ in range(3):
                    tasks.start_soon(write, workflow(handle=handle))
                for _ in range(number % 4):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            found = await store.read("ann", handle)
            assert len(await store.history("ann", handle)) == (0 if found is None else 1)
            expected = 0 if found is None else 1
            assert await store.write(workflow(expected + 1, handle), expected_version=expected)

    # names

    @pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES.keys())
    async def test_odd_scopes_and_handles(self, store: VersionedFsmStateStore, name: str):
        decoys = [other for other in ODD_NAMES.values() if other != name]
        await add(store, *(workflow(scope=decoy, handle=decoy, id="decoy") for decoy in decoys))
        written = workflow(scope=name, handle=name, state=name)
        assert await store.write(written, expected_version=0, step=step(scope=name, handle=name))
        assert await store.read(name, name) == written
        assert await store.write(replace(written, version=2), expected_version=1)
        assert list(await store.states_in_use(name)) == [name]
        assert [each.scope for each in await store.find(name)] == [name]
        assert [each.handle for each in await store.list_workflows(scope=name)] == [name]
        assert await store.history(name, name) == [step(scope=name, handle=name)]
        written = replace(written, version=3, expires_at=5.0)
        assert await store.write(written, expected_version=2)
        assert await store.prune(before=6.0) == 1
        assert await store.read(name, name) is None
        assert await store.history(name, name) == []
        assert await store.write(replace(written, version=1), expected_version=0)
        listed = [each.handle for each in await store.list_workflows()]
        assert listed == sorted(ODD_NAMES.values())

    @pytest.mark.parametrize(("scope", "handle"), [("ann", "\ud800"), ("\udfff", "INV-1")])
    async def test_a_name_that_is_no_text_is_refused(self, store: VersionedFsmStateStore, scope: str, handle: str):
        with pytest.raises(StoreError, match="no Unicode text"):
            await store.read(scope, handle)
        with pytest.raises(StoreError, match="no Unicode text"):
            await store.write(workflow(scope=scope, handle=handle), expected_version=0)
        with pytest.raises(StoreError, match="no Unicode text"):
            await store.history(scope, handle)

    # aclose

    async def test_closing_twice_does_nothing(self, store: VersionedFsmStateStore):
        await add(store, workflow())
        await store.aclose()
        await store.aclose()

    async def test_closing_before_the_first_use(self, store: VersionedFsmStateStore):
        await store.aclose()
