"""A FastMCP server that is there already: its tools stay as they are, and the lines below them gate them.

Run it over stdio: `python examples/existing_fastmcp.py`. One process is one cart.
"""

from fastmcp import FastMCP

from mcpfusion import StateMachineGate, gate_server

mcp = FastMCP("shop")


@mcp.tool
def search(words: str) -> list[str]:
    """Find things to buy."""
    return [f"{words} tea", f"{words} coffee"]


@mcp.tool
def add_item(item: str) -> str:
    """Put an item into the cart."""
    return f"{item} is in the cart"


@mcp.tool
def checkout() -> str:
    """Order what is in the cart."""
    return "ordered"


@mcp.tool
def cancel_order() -> str:
    """Cancel the order."""
    return "cancelled"


CART = {
    "id": "cart",
    "initial": "empty",
    "states": {
        "empty": {"on": {"ADD": "filled"}},
        "filled": {"on": {"ADD": "filled", "CHECKOUT": "ordered"}},
        "ordered": {"on": {"CANCEL": "empty"}},
    },
}

gate = StateMachineGate(CART)
gate.bind_tool("add_item", ["empty", "filled"], "ADD")
gate.bind_tool("checkout", ["filled"], "CHECKOUT")
gate.bind_tool("cancel_order", ["ordered"], "CANCEL")
gate_server(mcp, gate, store="sqlite:///shop.db")

if __name__ == "__main__":
    mcp.run(show_banner=False)
