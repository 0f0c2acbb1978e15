"""Orders, whose workflows are opened by a call that mints a handle."""

from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict

from mcpfusion import Context, Fusion, StateMachineGate, ToolError

ORDER = {
    "id": "order",
    "initial": "cart",
    "states": {
        "cart": {"on": {"CHECKOUT": "placed"}},
        "placed": {"on": {"SHIP": "shipped"}},
        "shipped": {"type": "final"},
    },
}


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item: str
    price: float


class Note(TypedDict):
    item: str


def orders() -> tuple[Fusion, StateMachineGate]:
    """Declare actions that open orders in the initial state or beyond it, with each kind of result."""
    f = Fusion("orders", version="1.0.0")

    @f.mutation("order.open").describe("Open an order").mints_handle().handle
    async def open_(item: str) -> Receipt:
        if item == "anvil":
            raise ToolError("no anvils", code="SOLD_OUT")
        if item == "bomb":
            raise RuntimeError("a secret reason")
        return Receipt(item=item, price=3)

    @f.mutation("order.place").describe("Open and place").mints_handle().bind_state("cart", "CHECKOUT").handle
    async def place(item: str, ctx: Context) -> Note:
        assert ctx.workflow is not None
        assert ctx.workflow.idempotency_key
        return {"item": f"{item} for {ctx.workflow.handle}"}

    @f.mutation("order.text").describe("Open and say so").mints_handle().handle
    async def text() -> str:
        return "opened"

    @f.mutation("order.list").describe("Open and list").mints_handle().handle
    async def list_() -> list[int]:
        return [1, 2]

    @f.mutation("order.prices").describe("Open and price").mints_handle().handle
    async def prices() -> dict[str, int]:
        return {"anvil": 7}

    @f.mutation("order.loose").describe("Open, promise nothing").mints_handle().handle
    async def loose():  # type: ignore[no-untyped-def]
        return {"any": "thing"}

    @f.mutation("order.checkout").describe("Check out").bind_state("cart", "CHECKOUT").handle
    async def checkout() -> dict[str, str]:
        return {"status": "placed"}

    @f.mutation("order.ship").describe("Ship it").bind_state("placed", "SHIP").handle
    async def ship() -> dict[str, str]:
        return {"status": "shipped"}

    return f, f.fsm(ORDER)


def handle_in_text(result: Any) -> str:
    """Return the handle that a minting call's text names."""
    return str(result.content[-1].text).split('"')[1]
