"""Actions of our own on an MCPServer that has tools and resources already: those stay, and ours are gated.

Run it over stdio, `python examples/existing_mcpserver.py`, or over HTTP, with a port as its argument.
"""

import sys

from mcp.server import MCPServer

from mcpfusion import Fusion

mcp = MCPServer("releases")


@mcp.tool()
def changelog(release: str) -> str:
    """Show what is new in a release."""
    return f"{release}: everything is faster"


@mcp.resource("releases://policy")
def policy() -> str:
    """How releases are made."""
    return "Build, then test, then publish."


f = Fusion("releases")

gate = f.fsm(
    {
        "id": "release",
        "initial": "planned",
        "states": {
            "planned": {"on": {"BUILT": "built"}},
            "built": {"on": {"PASSED": "tested", "FAILED": "planned"}},
            "tested": {"on": {"PUBLISHED": "published"}},
            "published": {"type": "final"},
        },
    }
)


@f.action("release.build", annotations={"destructive": False}).bind_state("planned", "BUILT").handle
def build(release: str) -> str:
    """Build a release."""
    return f"{release} is built"


def verdict(arguments: dict, result: dict) -> str:
    """Which event a test run sends: its result decides."""
    return "PASSED" if result["failures"] == 0 else "FAILED"


@f.action("release.test", annotations={"destructive": False}).bind_state("built", verdict).handle
def test(release: str) -> dict:
    """Test a release that is built."""
    return {"release": release, "failures": 1 if "rc" in release else 0}


@f.mutation("release.publish").bind_state("tested", "PUBLISHED").handle
def publish(release: str) -> str:
    """Publish a release that passed its tests. It cannot be taken back."""
    return f"{release} is published"


f.registry().attach_to_server(mcp, fsm=gate, fsm_store="sqlite:///releases.db", state_handle_key="release")

if __name__ == "__main__":
    if len(sys.argv) > 1:
        mcp.run("streamable-http", port=int(sys.argv[1]))
    else:
        mcp.run()
