"""Who is told that a menu changed: sessions of the handshake eras, and `subscriptions/listen` streams."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import count

import anyio

from mcpfusion.gate.binding import Bindings
from mcpfusion.gate.identity import Identity, own_handle
from mcpfusion.gate.menu import Menu, Menus
from mcpfusion.gate.workflows import Moved, StoreUnavailable

_log = logging.getLogger(__name__)

SEND_TIMEOUT = 5.0
"""Seconds that one notification may take to be handed to its stream."""


@dataclass(eq=False, slots=True)
class Listener:
    """One stream that is told, and the menu it was last told or shown.

    Attributes:
        menu: None while it is being worked out for the first time, and after that failed.
        handles: What the session has named so far, the most recent last.
        looked: Number of the look at the store that the menu is from.
    """

    identity: Identity
    scope: str
    send: Callable[[], Awaitable[None]]
    menu: Menu | None = None
    handles: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    looked: int = -1


class Audience:
    """Keeps the listeners and tells those whose menu a committed step changed."""

    def __init__(self, bindings: Bindings, menus: Menus, *, carries_handles: bool) -> None:
        self._bindings = bindings
        self._menus = menus
        self._carries_handles = carries_handles
        self._sessions: dict[int, Listener] = {}
        self._streams: set[Listener] = set()
        self._looks = count()

    @property
    def size(self) -> int:
        """How many listeners there are."""
        return len(self._sessions) + len(self._streams)

    def shown(self, connection: int, listener: Callable[[], Listener], menu: Menu) -> None:
        """Note the menu a session was shown; the first time makes it a listener."""
        found = self._sessions.get(connection)
        if found is None:
            found = self._sessions[connection] = listener()
        found.menu = menu

    def forget(self, connection: int) -> None:
        """The session is over."""
        self._sessions.pop(connection, None)

    async def listen(self, listener: Listener) -> None:
        """Add a listen stream. Its menu is worked out after it was added, so that no step falls in between.

        Raises:
            StoreUnavailable: The store failed; the stream is not added.
        """
        self._streams.add(listener)
        try:
            await self._look(listener, next(self._looks), {})
        except BaseException:
            self.leave(listener)
            raise

    def leave(self, listener: Listener) -> None:
        """A listen stream is over."""
        self._streams.discard(listener)

    def affects_menus(self, step: Moved) -> bool:
        """Return whether a committed step can have changed anybody's menu."""
        if step.opens:
            return True
        before, after = self._bindings.visible(step.before), self._bindings.visible(step.after)
        initial = self._bindings.initial.state
        return before != after or (step.before.state == initial) != (step.after.state == initial)

    async def changed(self, workflows: Sequence[tuple[str, str]]) -> None:
        """Tell every listener whose menu is another one now that these workflows, by scope and handle, have moved."""
        await _tell_all(await self._look_all(self._affected(frozenset(workflows))))

    async def heard(self, workflows: Sequence[tuple[str, ...]] | None) -> None:
        """Other processes moved these workflows, by scope and handle; None: nobody knows which, and all look."""
        if workflows is not None:
            await self.changed([(scope, handle) for scope, handle in workflows])
            return
        listeners = [*self._sessions.values(), *self._streams]
        await self._look_all(listeners)
        await _tell_all(listeners)

    async def refetch(self, scopes: Set[str]) -> None:
        """Tell all listeners of these scopes to fetch their lists again: they were shown less than there is."""
        await _tell_all([each for each in [*self._sessions.values(), *self._streams] if each.scope in scopes])

    async def named(self, connection: int, handle: str) -> None:
        """Tell a session that named a workflow for the first time, when its menu shows more because of that.

        The call that named it may have moved nothing: it was refused, or only looked.
        """
        listener = self._sessions.get(connection)
        if listener is None or listener.menu is None:
            return
        if not self._carries_handles or listener.identity.session_id is None:
            return
        try:
            alone = await self._menus.menu(listener.identity, listener.scope, [handle])
            if alone.names <= listener.menu.names and alone.compact >= listener.menu.compact:
                return
            is_other = await self._look(listener, next(self._looks), {})
        except StoreUnavailable:
            return  # logged where it happened, and the call has its answer
        if is_other:
            await _tell(listener)

    def _affected(self, workflows: Set[tuple[str, str]]) -> Iterable[Listener]:
        scopes = {scope for scope, _ in workflows}
        for listener in [*self._sessions.values(), *self._streams]:
            scope, identity = listener.scope, listener.identity
            if scope not in scopes:
                continue
            if not self._carries_handles:
                if (scope, own_handle(identity)) in workflows:
                    yield listener
            elif identity.session_id is None or any((scope, handle) in workflows for handle in listener.handles):
                yield listener

    async def _look_all(self, listeners: Iterable[Listener]) -> list[Listener]:
        """Note the listeners' menus; returns those whose menu is another one."""
        changed: list[Listener] = []
        known: dict[str, Menu] = {}
        look = next(self._looks)
        for listener in listeners:
            try:
                is_other = await self._look(listener, look, known)
            except Exception:  # the step is committed; a listener that cannot be judged is told to look again
                _log.warning("cannot work out a listener's menu", exc_info=True)
                listener.menu, is_other = None, True
            if is_other:
                changed.append(listener)
        return changed

    async def _look(self, listener: Listener, look: int, known: dict[str, Menu]) -> bool:
        """Note a listener's menu; returns whether it is another one. A look that began before the last noted one
        may have seen an older state, and does not count."""
        menu = await self._menu(listener, known)
        if look < listener.looked:
            return False
        listener.looked = look
        before, listener.menu = listener.menu, menu
        return before != menu

    async def _menu(self, listener: Listener, known: dict[str, Menu]) -> Menu:
        """Work the menu out, once for all listeners that share it by having the same scope."""
        shared = self._carries_handles and listener.identity.session_id is None
        if shared and listener.scope in known and not self._menus.stable_for(listener.identity):
            return known[listener.scope]
        menu = await self._menus.menu(listener.identity, listener.scope, list(listener.handles))
        if shared and not menu.stable:
            known[listener.scope] = menu
        return menu


async def _tell_all(listeners: Sequence[Listener]) -> None:
    if listeners:
        async with anyio.create_task_group() as group:
            for listener in listeners:
                group.start_soon(_tell, listener)


async def _tell(listener: Listener) -> None:
    try:
        with anyio.move_on_after(SEND_TIMEOUT) as scope:
            await listener.send()
    except Exception:  # a stream that broke is its transport's business; the step is committed all the same
        _log.debug("a listener could not be told that its menu changed", exc_info=True)
        return
    if scope.cancelled_caught:
        _log.warning("a listener did not take a notification within %g s", SEND_TIMEOUT)
