"""The menu: which bound tools a request may see, by era and by what is known of the caller."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcpfusion.gate.binding import Bindings
from mcpfusion.gate.identity import Identity, own_handle
from mcpfusion.gate.workflows import GoneError, StuckError, Workflows
from mcpfusion.machine import Snapshot, UnknownStateError


@dataclass(frozen=True, slots=True)
class Menu:
    """What one request may see of the bound tools. Equal menus are equal lists, so a menu is a cache key.

    Attributes:
        names: The bound tools on the menu.
        compact: Tools with a compact description, of which there is one here, show it: every workflow stands in
            the initial state.
        stable: The list is the whole one whatever the state, and says of each tool where it works.
    """

    names: frozenset[str]
    compact: bool = False
    stable: bool = False


class Menus:
    """Works out menus.

    Args:
        carries_handles: Calls name their workflow in an argument (or a tool mints handles), so that one caller
            can have many workflows.
        single_tenant: Whoever calls without a session and a principal is one and the same, also over HTTP.
    """

    def __init__(
        self,
        bindings: Bindings,
        workflows: Workflows,
        *,
        carries_handles: bool,
        single_tenant: bool,
    ) -> None:
        self._bindings = bindings
        self._workflows = workflows
        self._carries_handles = carries_handles
        self._single_tenant = single_tenant
        self._whole = Menu(frozenset(bindings.tools), stable=True)

    def stable_for(self, identity: Identity) -> bool:
        """Return whether the caller gets the whole list: nothing tells one anonymous caller from another."""
        anonymous = identity.http and identity.session_id is None and identity.principal is None
        return anonymous and self._carries_handles and not self._single_tenant

    async def menu(self, identity: Identity, scope: str, session_handles: Sequence[str] = ()) -> Menu:
        """Return the caller's menu now.

        Args:
            scope: Where the caller's workflows live.
            session_handles: The handles that the caller's session has named so far.

        Raises:
            StoreUnavailable: The store failed.
        """
        if self.stable_for(identity):
            return self._whole
        if not self._carries_handles:
            return self._of(await self._standing(scope, [own_handle(identity)]), opens=False)
        if identity.session_id is not None:
            return self._of(await self._standing(scope, session_handles), opens=True)
        in_use = await self._workflows.in_use(scope)
        return self._whole if in_use is None else self._of(in_use, opens=True)

    async def _standing(self, scope: str, handles: Iterable[str]) -> list[Snapshot]:
        found: list[Snapshot] = []
        for handle in handles:
            # A workflow that is gone, or fits the machine no more, shows nothing; a call on it is told why.
            with contextlib.suppress(UnknownStateError, StuckError, GoneError):
                found.append((await self._workflows.load(scope, handle))[1])
        return found

    def _of(self, snapshots: Iterable[Snapshot], *, opens: bool) -> Menu:
        names = set(self._bindings.opening if opens else ())
        compact = True
        for snapshot in snapshots:
            names |= self._bindings.visible(snapshot)
            compact = compact and snapshot.state == self._bindings.initial.state
        # Where no tool on it has a compact description, the list is the same before and after.
        return Menu(frozenset(names), compact=compact and not self._bindings.compact.isdisjoint(names))
