"""`mcpfusion run` as a process of its own, with the SDK's client on the other end."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from mcp import StdioServerParameters

from ..support.serving import ERAS, free_port, sdk_client
from .conftest import Cli, clean_environment, error_line

SERVER = """
from mcpfusion import Fusion

f = Fusion("invoices", version="1.0.0")
gate = f.fsm({
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved"}},
        "approved": {"type": "final"},
    },
})

@f.mutation("invoice.submit").describe("Submit a draft").bind_state("draft", "SUBMIT").handle
async def submit(id: str) -> dict:
    return {"id": id}

@f.mutation("invoice.approve").describe("Approve it").bind_state("review", "APPROVE").handle
async def approve(id: str) -> dict:
    return {"id": id}
"""
OWN = SERVER + 'server = f.server(fsm=gate, state_handle_key="id", store="sqlite:///invoices.db")\n'
MAIN = "if __name__ == '__main__':\n    raise SystemExit('run by its own means')\n"
GATED = """
from {module} import {kind}
from mcpfusion import StateMachineGate, gate_server

mcp = {kind}("shop")

@mcp.tool()
def checkout(id: str) -> str:
    return f"paid {{id}}"

gate = StateMachineGate({{"initial": "cart", "states": {{"cart": {{"on": {{"CHECKOUT": "paid"}}}}, "paid": {{}}}}}})
gate.bind_tool("checkout", ["cart"], "CHECKOUT")
gate_server(mcp, gate, store="sqlite:///shop.db", state_handle_key="id")
"""
KINDS = {"MCPServer": "mcp.server", "FastMCP": "fastmcp"}

Start = Callable[..., "Running"]


class Running:
    """A server that was started over HTTP, and what it says on stderr."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._log = folder / "stderr.txt"
        command = [sys.executable, "-m", "mcpfusion.cli.main", "run", *arguments, "--transport", "http"]
        with self._log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=folder,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, f"not {what} in time; it said: {self.said}"
            time.sleep(0.05)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(20)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run a server over HTTP on a free port; it has ended when the test has."""
    all_of_them: list[Running] = []

    def run(*arguments: str) -> Running:
        running = Running(tmp_path, *arguments)
        all_of_them.append(running)
        running.wait(lambda: running.listens() or running.process.poll() is not None, "listening")
        assert running.process.poll() is None, running.said
        return running

    yield run
    for running in all_of_them:
        if running.process.poll() is None:
            try:
                running.stop(signal.SIGTERM)
            finally:
                running.process.kill()
                running.process.wait()


def over_stdio(folder: Path, *arguments: str) -> StdioServerParameters:
    command = ["-m", "mcpfusion.cli.main", "run", *arguments]
    return StdioServerParameters(command=sys.executable, args=command, cwd=folder, env=clean_environment())


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ERAS)
async def test_stdio(tmp_path: Path, mode: str) -> None:
    (tmp_path / "server.py").write_text(OWN + MAIN)
    async with sdk_client(over_stdio(tmp_path, "server.py"), mode) as client:
        assert not (await client.call_tool("invoice.submit", {"id": "INV-7"})).is_error
        assert (await client.call_tool("invoice.submit", {"id": "INV-7"})).is_error
        assert not (await client.call_tool("invoice.approve", {"id": "INV-7"})).is_error


@pytest.mark.anyio
async def test_http_in_both_eras(tmp_path: Path, start: Start) -> None:
    (tmp_path / "server.py").write_text(OWN + MAIN)
    running = start("server.py:server")
    for mode in ERAS:
        async with sdk_client(running.url, mode) as client:
            assert not (await client.call_tool("invoice.submit", {"id": mode})).is_error
            assert (await client.call_tool("invoice.submit", {"id": mode})).is_error
    assert running.said.splitlines()[0] == f"mcpfusion: serving server.py:server at {running.url}"
    assert "Traceback" not in running.said
    assert running.stop(signal.SIGINT) == 0


@pytest.mark.anyio
async def test_the_workflows_command_sees_what_a_running_server_did(tmp_path: Path, start: Start, cli: Cli) -> None:
    (tmp_path / "server.py").write_text(OWN)
    running = start("server.py", "--store", "sqlite:///elsewhere.db")
    async with sdk_client(running.url, "auto") as client:
        await client.call_tool("invoice.submit", {"id": "INV-7"})
        listed = cli("workflows", "list", "--store", "sqlite:///elsewhere.db")
        assert "INV-7" in listed.stdout
        assert "review" in listed.stdout
        assert not (tmp_path / "invoices.db").exists()
        put_back = cli("workflows", "reset", "INV-7", "--yes", "--machine", "server.py",
                       "--store", "sqlite:///elsewhere.db")  # fmt: skip
        assert put_back.returncode == 0, put_back.stderr
        assert not (await client.call_tool("invoice.submit", {"id": "INV-7"})).is_error


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "target", "options"),
    [
        (
            "from mcpfusion import Fusion\nf = Fusion('a')\n@f.query('a.b').handle\ndef b() -> str: return 'B'\n",
            "x.py",
            (),
        ),
        (OWN + "other = f.registry()\n", "x.py:server", ("--store", "memory://")),
        (OWN.replace("server = ", "class Made: server = "), "x.py:Made.server", ()),
        (OWN, "x", ()),
        (OWN, "./x.py", ()),
    ],
    ids=["a-fusion", "object", "dotted-object", "module", "path"],
)
async def test_what_may_be_run(tmp_path: Path, content: str, target: str, options: tuple[str, ...]) -> None:
    (tmp_path / "x.py").write_text(content)
    async with sdk_client(over_stdio(tmp_path, target, *options), "auto") as client:
        assert (await client.list_tools()).tools


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_gated_server_of_another_kind(tmp_path: Path, start: Start, kind: str) -> None:
    (tmp_path / "shop.py").write_text(GATED.format(kind=kind, module=KINDS[kind]))
    async with sdk_client(over_stdio(tmp_path, "shop.py"), "auto") as client:
        assert not (await client.call_tool("checkout", {"id": "1"})).is_error
    async with sdk_client(start("shop.py").url, "auto") as client:
        assert (await client.call_tool("checkout", {"id": "1"})).is_error
        assert not (await client.call_tool("checkout", {"id": "2"})).is_error
    async with sdk_client(over_stdio(tmp_path, "shop.py", "--store", "sqlite:///other.db"), "auto") as client:
        assert not (await client.call_tool("checkout", {"id": "1"})).is_error
    assert (tmp_path / "other.db").exists()


@pytest.mark.anyio
async def test_a_file_finds_its_neighbours_and_runs_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "rules.py").write_text("import server\nNAME = server.NAME\n")
    (folder / "server.py").write_text(
        "from pathlib import Path\n"
        "with open(Path(__file__).parent / 'runs', 'a') as runs: runs.write('run\\n')\n"
        "NAME = 'a.b'\nimport rules\nfrom mcpfusion import Fusion\n"
        "f = Fusion('a')\n@f.query(rules.NAME).handle\ndef b() -> str: return 'B'\n"
    )
    async with sdk_client(over_stdio(tmp_path, "deep/server.py"), "auto") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["a.b"]
    assert (folder / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("content", "target", "said"),
    [
        ("", "x.py", "x.py has no server"),
        ("x = 1", "x.py:x", "'x' in x.py is no server"),
        ("x = 1", "x.py:y.z", "x.py has no 'y.z'"),
        ("x = 1\nx.y", "x.py", "cannot load x.py: line 2: AttributeError: 'int' object has no attribute 'y'"),
        ("def f(:", "x.py", "cannot load x.py: SyntaxError: invalid syntax (x.py, line 1)"),
        ("import nowhere", "x.py", "cannot load x.py: line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("import nowhere", "x", "cannot load x: ModuleNotFoundError: No module named 'nowhere'"),
        ("import sys; sys.exit('bye')", "x.py", "cannot load x.py: it ended with exit code bye"),
        ("", "nowhere", "no file or module 'nowhere'"),
        ("", "x.nowhere", "no file or module 'x.nowhere'"),
        (OWN + "more = f.server(fsm=gate)\nserver = more2 = more\ndel more2\nfirst = f.server(fsm=gate)\n"
         "del server\n", "x.py", "x.py has several servers; say which one: :first or :more"),
        (OWN.replace("server = f", "f"), "x.py", "cannot make the server: action 'invoice.submit' is bound"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_said_in_one_line(
    cli: Cli, tmp_path: Path, content: str, target: str, said: str
) -> None:
    (tmp_path / "x.py").write_text(content)
    assert error_line(cli("run", target)).startswith(said)


def test_a_store_that_a_server_cannot_have(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(OWN)
    line = error_line(cli("run", "x.py", "--store", "mysql://u:hunter2@h/db"))
    assert line.startswith("cannot make the server: no store for mysql:// URLs")
    (tmp_path / "bare.py").write_text("from mcp.server import MCPServer\nmcp = MCPServer('bare')\n")
    assert "the server has no gate" in error_line(cli("run", "bare.py", "--store", "memory://"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gated_server_that_all_callers_would_share_is_refused_beyond_this_machine(
    cli: Cli, tmp_path: Path, kind: str
) -> None:
    gated = GATED.format(kind=kind, module=KINDS[kind]).replace(', state_handle_key="id"', "")
    (tmp_path / "shop.py").write_text(gated)
    result = cli("run", "shop.py", "--transport", "http", "--host", "0.0.0.0", "--port", "0")
    assert result.returncode == 1
    assert "all share one workflow" in result.stderr.splitlines()[-1]
    assert "refused on 0.0.0.0" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nowhere.py"), "no file 'nowhere.py'"),
        (("run", "x.py:"), "'x.py:': expected FILE or FILE:OBJECT"),
        (("run", "x.py:a b"), "expected FILE or FILE:OBJECT"),
        (("run", "."), "no file '.'"),
        (("run", "x.py", "--reload"), "--reload needs --transport http"),
        (("run", "x.py", "--port", "80"), "--host and --port need --transport http"),
        (("run", "x.py", "--host", "::1"), "--host and --port need --transport http"),
        (("run", "nowhere.py", "--transport", "http", "--reload", "--port", "0"), "no file 'nowhere.py'"),
    ],
)
def test_wrong_usage(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "x.py").write_text(OWN)
    assert said in error_line(cli(*arguments), 2)


def test_an_address_that_cannot_be_listened_on(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(OWN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = error_line(cli("run", "x.py", "--transport", "http", "--port", port))
    assert line == f"cannot listen on 127.0.0.1 port {port}: Address already in use"


def test_callers_who_would_share_one_workflow_are_refused_off_loopback(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(OWN.replace(', state_handle_key="id"', ""))
    result = cli("run", "x.py", "--transport", "http", "--host", "0.0.0.0", "--port", "0")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("mcpfusion: cannot serve: callers over HTTP")
    assert "Traceback" not in result.stderr


def test_stdio_ends_with_its_client_and_leaves_stdout_to_the_protocol(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(OWN)
    result = cli("run", "x.py", input="")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_port_0_is_a_free_port_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(OWN)
    command = ["-m", "mcpfusion.cli.main", "run", "x.py", "--transport", "http", "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.kill()
    port = int(said.rstrip().removesuffix("/mcp").rpartition(":")[2])
    assert said == f"mcpfusion: serving x.py at http://127.0.0.1:{port}/mcp\n"
    assert port > 0


class TestReload:
    @pytest.mark.anyio
    @pytest.mark.timeout(300)
    async def test_a_changed_file_is_served_anew(self, tmp_path: Path, start: Start) -> None:
        file = tmp_path / "server.py"
        file.write_text(OWN)
        running = start("server.py", "--reload")
        await self.serves(running, "invoice.approve", "invoice.submit")

        file.write_text(OWN.replace("invoice.approve", "invoice.accept"))
        await self.serves(running, "invoice.accept", "invoice.submit")
        assert "mcpfusion: server.py changed, starting again\n" in running.said

        file.write_text("x = y\n")
        running.wait(lambda: "line 1: NameError: name 'y' is not defined" in running.said, "told of the fault")
        assert running.process.poll() is None

        file.write_text(OWN)
        await self.serves(running, "invoice.approve", "invoice.submit")
        assert "Traceback" not in running.said

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
    def test_it_ends_with_its_server(self, tmp_path: Path, start: Start, how: signal.Signals) -> None:
        (tmp_path / "server.py").write_text(OWN)
        running = start("server.py", "--reload")
        assert running.stop(how) == 0
        assert not running.listens()
        assert "Traceback" not in running.said

    def test_a_killed_watcher_leaves_no_server_behind(self, tmp_path: Path, start: Start) -> None:
        (tmp_path / "server.py").write_text(OWN)
        running = start("server.py", "--reload")
        running.stop(signal.SIGKILL)
        running.wait(lambda: not running.listens(), "gone")

    async def serves(self, running: Running, *names: str) -> None:
        """Wait until a new client is shown these tools; what was there before may still be on its way out."""
        found: list[str] | Exception = []
        with anyio.move_on_after(60):
            while found != [*names]:
                await anyio.sleep(0.1)
                try:
                    async with sdk_client(running.url, "auto") as client:
                        found = sorted(tool.name for tool in (await client.list_tools()).tools)
                except Exception as error:
                    found = error
        assert found == [*names], running.said
