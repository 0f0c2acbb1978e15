"""What an import costs: the SDK and everything above it come in when a server is made, and not before."""

import subprocess
import sys

import pytest

HEAVY = ("mcp", "mcp_types", "fastmcp", "starlette", "uvicorn", "httpx2", "pydantic_settings", "click", "rich")


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules that a new interpreter has after `code`."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_no_sdk_and_no_model_library() -> None:
    loaded = loaded_after("import mcpfusion")
    assert "mcpfusion" in loaded
    assert not loaded & {*HEAVY, "pydantic", "anyio", "yaml", "sqlite3"}


@pytest.mark.parametrize(
    "code",
    [
        "from mcpfusion import Fusion, Context, StateMachineGate, ToolError, ActionRegistry, Machine",
        "from mcpfusion.stores import open_store; open_store('memory://')",
        "from mcpfusion import StateMachineGate\n"
        "gate = StateMachineGate({'id': 'a', 'initial': 'b', 'states': {'b': {'on': {'GO': 'c'}}, 'c': {}}})\n"
        "gate.bind_tool('t', 'b', 'GO'); assert gate.transition('GO').changed",
        "from mcpfusion import Fusion, Context\n"
        "f = Fusion('a')\n"
        "async def handler(x: int, ctx: Context) -> str: ...\n"
        "f.action('a.b').describe('c').bind_state('d', 'E').handle(handler)",
        "import mcpfusion\n"
        "for name, home in mcpfusion._HOMES.items():\n"
        "    assert home.startswith('wire.') or getattr(mcpfusion, name)",
    ],
    ids=["names", "store", "gate", "action", "all"],
)
def test_declaring_actions_and_gates_imports_no_sdk(code: str) -> None:
    assert not loaded_after(code) & set(HEAVY)


def test_every_public_name_is_there_and_no_other() -> None:
    loaded_after(
        "import mcpfusion\n"
        "for name in mcpfusion.__all__: getattr(mcpfusion, name)\n"
        "try: mcpfusion.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)\n"
        "else: raise SystemExit(1)"
    )


def test_a_server_of_our_own_needs_no_fastmcp() -> None:
    loaded = loaded_after("from mcpfusion import Fusion\nFusion('a').server()")
    assert "mcp" in loaded
    assert "fastmcp" not in loaded
