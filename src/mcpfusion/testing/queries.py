"""What every `VersionedFsmStateStore` must find among many workflows, and what it must remove."""

from dataclasses import replace
from typing import Any

import pytest

from mcpfusion.stores import VersionedFsmStateStore
from mcpfusion.testing.records import add, claim, step, workflow


class QueriesContract:
    """Looking among many workflows, their histories, and pruning."""

    pytestmark = pytest.mark.anyio

    # states_in_use

    async def test_states_in_use_are_distinct_and_sorted(self, store: VersionedFsmStateStore):
        assert list(await store.states_in_use("ann")) == []
        for number, state in enumerate(["review", "draft", "review", "zoo", "draft", "Alpha", "é", ""]):
            await add(store, workflow(handle=str(number), state=state))
        assert list(await store.states_in_use("ann")) == ["", "Alpha", "draft", "review", "zoo", "é"]

    async def test_states_in_use_are_the_scopes_own(self, store: VersionedFsmStateStore):
        await add(store, workflow(scope="ann", state="draft"), workflow(scope="bob", state="review"))
        await add(store, workflow(scope="", state="approved"))
        assert list(await store.states_in_use("ann")) == ["draft"]
        assert list(await store.states_in_use("bob")) == ["review"]
        assert list(await store.states_in_use("")) == ["approved"]
        assert list(await store.states_in_use("carol")) == []

    async def test_states_in_use_follow_the_workflows(self, store: VersionedFsmStateStore):
        await add(store, workflow(handle="1", state="draft"), workflow(handle="2", state="draft"))
        await store.write(workflow(2, handle="1", state="review"), expected_version=1)
        assert list(await store.states_in_use("ann")) == ["draft", "review"]
        await store.write(workflow(2, handle="2", state="review"), expected_version=1)
        assert list(await store.states_in_use("ann")) == ["review"]
        await store.write(workflow(3, handle="2", state="review"), expected_version=2)
        assert not await store.write(workflow(2, handle="1", state="draft"), expected_version=1)
        assert list(await store.states_in_use("ann")) == ["review"]

    async def test_a_workflow_that_has_taken_no_step_is_in_no_state_in_use(self, store: VersionedFsmStateStore):
        await add(store, workflow(handle="claimed", state="draft", steps=0, claim=claim()))
        assert list(await store.states_in_use("ann")) == []
        assert [each.handle for each in await store.list_workflows(state="draft")] == ["claimed"]
        await store.write(workflow(2, handle="claimed", state="draft", steps=0), expected_version=1)
        assert list(await store.states_in_use("ann")) == []
        await store.write(workflow(3, handle="claimed", state="review", steps=1), expected_version=2)
        assert list(await store.states_in_use("ann")) == ["review"]

    # list_workflows

    async def test_gives_the_timers_that_are_due_next(self, store: VersionedFsmStateStore):
        await add(
            store,
            workflow(handle="late", due=30.0),
            workflow(handle="soon", due=10.0),
            workflow(handle="never"),
            workflow(handle="soon", scope="bob", due=20.0),
        )
        assert [tuple(row) for row in await store.next_due()] == [
            (10.0, "ann", "soon"),
            (20.0, "bob", "soon"),
            (30.0, "ann", "late"),
        ]
        assert [tuple(row) for row in await store.next_due(limit=1)] == [(10.0, "ann", "soon")]
        assert await store.next_due(limit=0) == []

    async def test_a_timer_follows_its_workflow(self, store: VersionedFsmStateStore):
        await add(store, workflow(due=10.0))
        assert await store.write(workflow(2, due=40.0), expected_version=1)
        assert [tuple(row) for row in await store.next_due()] == [(40.0, "ann", "INV-1")]
        assert await store.write(workflow(3), expected_version=2)
        assert await store.next_due() == []

    async def test_lists_by_scope_and_handle(self, store: VersionedFsmStateStore):
        names = [("bob", "1"), ("ann", "b"), ("", "z"), ("ann", "a"), ("ann", "B"), ("ann", "é"), ("b", "")]
        for scope, handle in names:
            await add(store, workflow(scope=scope, handle=handle))
        listed = await store.list_workflows()
        assert [(each.scope, each.handle) for each in listed] == sorted(names)
        assert listed[0] == workflow(scope="", handle="z")

    async def test_lists_page_by_page(self, store: VersionedFsmStateStore):
        names = sorted((scope, f"INV-{number:02}") for scope in ("", "ann", "bob") for number in range(40))
        for scope, handle in reversed(names):
            await add(store, workflow(scope=scope, handle=handle))
        assert len(await store.list_workflows()) == 100
        assert await store.list_workflows(limit=0) == []
        seen: list[tuple[str, str]] = []
        after: tuple[str, str] | None = None
        while page := await store.list_workflows(after=after, limit=7):
            assert len(page) <= 7
            assert after is None or after < (page[0].scope, page[0].handle)
            seen += [(each.scope, each.handle) for each in page]
            after = seen[-1]
        assert seen == names

    async def test_after_need_not_exist(self, store: VersionedFsmStateStore):
        await add(store, *(workflow(handle=handle) for handle in "ace"))
        assert [each.handle for each in await store.list_workflows(after=("ann", "b"))] == ["c", "e"]
        assert [each.handle for each in await store.list_workflows(after=("an", "zzz"))] == ["a", "c", "e"]
        assert await store.list_workflows(after=("bob", "")) == []

    async def test_lists_one_scope_or_one_state(self, store: VersionedFsmStateStore):
        for scope in ("", "ann", "bob"):
            await add(store, workflow(scope=scope, handle="1", state="draft"))
            await add(store, workflow(scope=scope, handle="2", state="review"))

        async def names(**filters: Any) -> list[tuple[str, str]]:
            return [(each.scope, each.handle) for each in await store.list_workflows(**filters)]

        assert await names(scope="ann") == [("ann", "1"), ("ann", "2")]
        assert await names(scope="") == [("", "1"), ("", "2")]
        assert await names(state="review") == [("", "2"), ("ann", "2"), ("bob", "2")]
        assert await names(scope="bob", state="draft") == [("bob", "1")]
        assert await names(scope="ann", after=("ann", "1")) == [("ann", "2")]
        assert await names(scope="ann", after=("bob", "1")) == []
        assert await names(state="draft", limit=2) == [("", "1"), ("ann", "1")]
        assert await names(scope="carol") == []
        assert await names(state="") == []

    async def test_lists_the_steps_in_doubt(self, store: VersionedFsmStateStore):
        await add(
            store,
            workflow(handle="free"),
            workflow(handle="marked", claim=claim(lease_until=9000.0, in_doubt=True)),
            workflow(handle="over", claim=claim(lease_until=1999.9)),
            workflow(handle="running", claim=claim(lease_until=2000.0)),
            workflow(handle="running later", claim=claim(lease_until=2000.1)),
            workflow(scope="bob", handle="over", claim=claim(lease_until=0.0), state="review"),
        )

        async def names(**filters: Any) -> list[str]:
            return [each.handle for each in await store.list_workflows(in_doubt_at=2000.0, **filters)]

        assert await names() == ["marked", "over", "over"]
        assert await names(scope="ann") == ["marked", "over"]
        assert await names(state="review") == ["over"]
        assert await names(limit=1) == ["marked"]
        assert await names(after=("ann", "marked")) == ["over", "over"]
        assert len(await store.list_workflows()) == 6

    async def test_a_step_leaves_the_doubtful_when_it_is_resolved(self, store: VersionedFsmStateStore):
        await add(store, workflow(claim=claim(in_doubt=True)))
        await store.write(workflow(2), expected_version=1)
        assert await store.list_workflows(in_doubt_at=1e12) == []

    # find

    async def test_finds_a_handle_in_every_scope(self, store: VersionedFsmStateStore):
        await add(store, workflow(scope="bob"), workflow(scope=""), workflow(scope="ann", handle="INV-10"))
        await add(store, workflow(scope="ann"))
        assert [each.scope for each in await store.find("INV-1")] == ["", "ann", "bob"]
        assert [each.scope for each in await store.find("INV-10")] == ["ann"]
        assert await store.find("INV") == []
        assert await store.find("inv-1") == []

    async def test_finds_at_most_100(self, store: VersionedFsmStateStore):
        scopes = [f"s{number:03}" for number in range(110)]
        await add(store, *(workflow(scope=scope) for scope in reversed(scopes)))
        assert [each.scope for each in await store.find("INV-1")] == scopes[:100]

    # history

    async def test_history_is_empty_before_a_step(self, store: VersionedFsmStateStore):
        assert await store.history("ann", "INV-1") == []
        await add(store, workflow())
        assert await store.history("ann", "INV-1") == []

    async def test_history_keeps_every_field(self, store: VersionedFsmStateStore):
        written = [
            step(),
            step(event=None, principal=None, call_id="", outcome="reset", at=-1.5),
            step(outcome="resolved_done", arguments={"id": 7, "card": "***"}, result=["ok", None]),
            step(outcome="resolved_not_done", arguments=0, result=""),
        ]
        for version, each in enumerate(written):
            assert await store.write(workflow(version + 1), expected_version=version, step=each)
        assert list(await store.history("ann", "INV-1")) == written

    async def test_history_gives_the_newest_oldest_first(self, store: VersionedFsmStateStore):
        for number in range(10):
            written = workflow(number + 1)
            await store.write(written, expected_version=number, step=step(call_id=str(number)))

        async def calls(limit: int) -> list[str]:
            return [each.call_id for each in await store.history("ann", "INV-1", limit=limit)]

        assert await calls(3) == ["7", "8", "9"]
        assert await calls(10) == await calls(1000) == [str(number) for number in range(10)]
        assert await calls(0) == []

    async def test_histories_do_not_mix(self, store: VersionedFsmStateStore):
        for scope, handle in (("ann", "1"), ("bob", "1"), ("ann", "2")):
            written = workflow(scope=scope, handle=handle)
            await store.write(written, expected_version=0, step=step(scope=scope, handle=handle, tool=scope + handle))
        assert [each.tool for each in await store.history("ann", "1")] == ["ann1"]
        assert [each.tool for each in await store.history("bob", "1")] == ["bob1"]

    async def test_history_outlives_a_reset(self, store: VersionedFsmStateStore):
        await store.write(workflow(1, id="w1"), expected_version=0, step=step())
        reset = replace(workflow(2), id="w2")
        await store.write(reset, expected_version=1, step=step(outcome="reset"))
        assert [each.outcome for each in await store.history("ann", "INV-1")] == ["committed", "reset"]

    # prune

    async def test_prunes_what_expired_the_soonest_first(self, store: VersionedFsmStateStore):
        await add(
            store,
            workflow(handle="late", expires_at=30.0),
            workflow(handle="first", expires_at=10.0),
            workflow(handle="second", scope="bob", expires_at=20.0),
            workflow(handle="never"),
        )
        assert await store.prune(before=10.0) == 0
        assert await store.prune(before=100.0, limit=0) == 0
        assert await store.prune(before=100.0, limit=2) == 2
        assert [each.handle for each in await store.list_workflows()] == ["late", "never"]
        assert await store.prune(before=100.0) == 1
        assert await store.prune(before=100.0) == 0
        assert [each.handle for each in await store.list_workflows()] == ["never"]

    async def test_what_is_pruned_is_gone_as_if_it_had_never_been(self, store: VersionedFsmStateStore):
        whole = workflow(expires_at=10.0, due=5.0)
        assert await store.write(whole, expected_version=0, step=step())
        assert await store.write(workflow(handle="other", due=6.0), expected_version=0, step=step(handle="other"))
        assert await store.prune(before=11.0) == 1
        assert await store.read("ann", "INV-1") is None
        assert await store.history("ann", "INV-1") == []
        assert await store.find("INV-1") == []
        assert [each.handle for each in await store.list_workflows(state="draft")] == ["other"]
        assert [tuple(row) for row in await store.next_due()] == [(6.0, "ann", "other")]
        assert len(await store.history("ann", "other")) == 1
        assert not await store.write(workflow(2), expected_version=1)
        assert await store.write(workflow(id="w2"), expected_version=0)
        assert await store.history("ann", "INV-1") == []

    async def test_a_state_that_only_a_pruned_workflow_stood_in_is_no_longer_in_use(
        self, store: VersionedFsmStateStore
    ):
        await add(store, workflow(expires_at=10.0), workflow(handle="2", state="review"))
        assert list(await store.states_in_use("ann")) == ["draft", "review"]
        assert await store.prune(before=11.0) == 1
        assert list(await store.states_in_use("ann")) == ["review"]

    async def test_a_claimed_workflow_is_not_pruned(self, store: VersionedFsmStateStore):
        await add(
            store,
            workflow(handle="running", expires_at=10.0, claim=claim()),
            workflow(handle="in doubt", expires_at=10.0, claim=claim(in_doubt=True)),
        )
        assert await store.prune(before=1e12) == 0
        assert await store.write(workflow(2, handle="running", expires_at=10.0), expected_version=1)
        assert await store.prune(before=1e12) == 1
        assert [each.handle for each in await store.list_workflows()] == ["in doubt"]

    async def test_the_end_follows_the_workflow(self, store: VersionedFsmStateStore):
        await add(store, workflow(expires_at=10.0), workflow(handle="2", expires_at=10.0))
        assert await store.write(workflow(2, expires_at=40.0), expected_version=1)
        assert await store.write(workflow(2, handle="2"), expected_version=1)
        assert await store.prune(before=40.0) == 0
        assert await store.prune(before=41.0) == 1
        assert [each.handle for each in await store.list_workflows()] == ["2"]
