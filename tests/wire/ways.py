"""One invoice server, made in every way in which a gate gets in front of tools.

Whatever the way, the tools are the same: `invoice.submit`, `invoice.approve`, `invoice.discharge`, `invoice.flaky`
are bound, `invoice.view` is not. `submit` and `discharge` take the handle `id` themselves, `approve` and `flaky` do
not. Where the way has a server of the user's own underneath, that also has the tool `own.echo`, a resource and a
prompt.

As a script: `python ways.py stdio|http PORT WAY [keyed]`.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from mcpfusion import Fusion, StateMachineGate, ToolError, gate_server

INVOICE = {
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved"}},
        "approved": {"on": {"DISCHARGE": "discharged"}},
        "discharged": {"type": "final"},
    },
}
BOUND = {
    "invoice.submit": ("draft", "SUBMIT"),
    "invoice.flaky": ("draft", "SUBMIT"),
    "invoice.approve": ("review", "APPROVE"),
    "invoice.discharge": ("approved", "DISCHARGE"),
}
RESOURCE = "memo://terms"
PROMPT = "remind"
SECRET = "hunter2 in the stack"


@dataclass
class Shop:
    """What the handlers do, and how often they did it."""

    paid: Counter[str] = field(default_factory=Counter[str])

    def submit(self, id: str) -> dict[str, Any]:
        return {"id": id, "status": "in review"}

    def approve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Tell what the handler was given, so that the test sees what was stripped."""
        return {"given": sorted(arguments), "status": "approved"}

    def discharge(self, id: str) -> dict[str, Any]:
        self.paid[id] += 1
        return {"id": id, "paid": self.paid[id]}

    def view(self, id: str) -> dict[str, Any]:
        return {"id": id, "paid": self.paid[id]}


@dataclass
class Way:
    """A server made in one way: what a client in process is given, and how it runs."""

    lowlevel: Server[Any]
    asgi: Callable[[], Any]
    run_stdio: Callable[[], None]
    run_http: Callable[[int], None]


# --- servers of the user's own -------------------------------------------------------------------------------------


def _fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError(SECRET)
    if how == "protocol":
        raise MCPError(types.INVALID_PARAMS, "no such branch", {"branch": 7})


def _lowlevel(shop: Shop | None) -> Server[Any]:
    """Return a low-level server with a tool, a resource and a prompt; with the invoice's tools if there is a shop."""
    text = {"type": "string"}
    invoice = {
        "invoice.submit": {"id": text},
        "invoice.approve": {},
        "invoice.discharge": {"id": text},
        "invoice.flaky": {"how": text},
        "invoice.view": {"id": text},
    }
    tools = {"own.echo": {"text": text}, **(invoice if shop else {})}

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"The tool {name}.",
                    input_schema={"type": "object", "properties": properties, "required": sorted(properties)},
                )
                for name, properties in tools.items()
            ]
        )

    async def call_tool(
        ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        given = dict(params.arguments or {})
        if params.name == "own.echo":
            return _answer({"echo": given["text"]})
        assert shop is not None
        match params.name:
            case "invoice.submit":
                return _answer(shop.submit(given["id"]))
            case "invoice.approve":
                return _answer(shop.approve(given))
            case "invoice.discharge":
                return _answer(shop.discharge(given["id"]))
            case "invoice.view":
                return _answer(shop.view(given["id"]))
            case "invoice.flaky":
                _fail(given["how"])
                if given["how"] == "error":
                    return types.CallToolResult(content=[types.TextContent(text="no ink left")], is_error=True)
                return _answer({"how": given["how"]})
        raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")

    async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri=RESOURCE, name="terms")])

    async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text="30 days")])

    async def list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name=PROMPT)])

    async def get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        content = types.TextContent(text="Please pay.")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    return Server(
        "own",
        version="9",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _answer(value: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=str(value))], structured_content=value)


def _decorated(server: Any, shop: Shop | None, error: type[Exception]) -> Any:
    """Give an `MCPServer` or a `FastMCP` the same: their decorators are spelled alike."""

    @server.tool(name="own.echo")
    def echo(text: str) -> dict[str, Any]:
        return {"echo": text}

    @server.resource(RESOURCE)
    def terms() -> str:
        return "30 days"

    @server.prompt(name=PROMPT)
    def remind() -> str:
        return "Please pay."

    if shop is None:
        return server

    @server.tool(name="invoice.submit")
    def submit(id: str) -> dict[str, Any]:
        return shop.submit(id)

    @server.tool(name="invoice.approve")
    def approve() -> dict[str, Any]:
        return shop.approve({})

    @server.tool(name="invoice.discharge")
    async def discharge(id: str) -> dict[str, Any]:
        return shop.discharge(id)

    @server.tool(name="invoice.flaky")
    def flaky(how: str) -> dict[str, Any]:
        _fail(how)
        if how == "error":
            raise error("no ink left")
        return {"how": how}

    @server.tool(name="invoice.view")
    def view(id: str) -> dict[str, Any]:
        return shop.view(id)

    return server


def _mcpserver(shop: Shop | None) -> Any:
    from mcp.server.mcpserver.exceptions import ToolError as SdkToolError

    return _decorated(MCPServer("own", version="9"), shop, SdkToolError)


def _fastmcp(shop: Shop | None) -> Any:
    from fastmcp import FastMCP
    from fastmcp.exceptions import ToolError as FastToolError

    return _decorated(FastMCP("own", version="9"), shop, FastToolError)


BASES: dict[str, Callable[[Shop | None], Any]] = {
    "lowlevel": _lowlevel,
    "mcpserver": _mcpserver,
    "fastmcp": _fastmcp,
}

# --- the ways ------------------------------------------------------------------------------------------------------


def _actions(shop: Shop) -> Fusion:
    """Declare the invoice's tools as actions of our own."""
    f = Fusion("own", version="9")

    @f.mutation("invoice.submit").describe("Submit.").bind_state("draft", "SUBMIT").handle
    async def submit(id: str) -> dict[str, Any]:
        return shop.submit(id)

    @f.action("invoice.approve").describe("Approve.").bind_state("review", "APPROVE").handle
    def approve() -> dict[str, Any]:
        return shop.approve({})

    @f.action("invoice.discharge").describe("Discharge.").bind_state("approved", "DISCHARGE").handle
    async def discharge(id: str) -> dict[str, Any]:
        return shop.discharge(id)

    @f.action("invoice.flaky").describe("Flaky.").bind_state("draft", "SUBMIT").handle
    async def flaky(how: str) -> dict[str, Any]:
        _fail(how)
        if how == "error":
            raise ToolError("no ink left")
        return {"how": how}

    @f.query("invoice.view").describe("View.").handle
    def view(id: str) -> dict[str, Any]:
        return shop.view(id)

    return f


def _bound_gate() -> StateMachineGate:
    gate = StateMachineGate(INVOICE)
    for tool, (state, event) in BOUND.items():
        gate.bind_tool(tool, [state], event)
    return gate


def _own(options: dict[str, Any], base: str | None) -> Way:
    f = _actions(Shop())
    server = f.server(fsm=f.fsm(INVOICE), base=BASES[base](None) if base else None, **options)
    return Way(
        server.lowlevel,
        lambda: server.asgi(host="127.0.0.1"),
        server.run,
        lambda port: server.run("http", host="127.0.0.1", port=port),
    )


def _attached(options: dict[str, Any], base: str) -> Way:
    f, server = _actions(Shop()), BASES[base](None)
    store = {"fsm_store": options.pop("store")} if "store" in options else {}
    attachment = f.registry().attach_to_server(server, fsm=f.fsm(INVOICE), **store, **options)
    return _running(attachment.lowlevel, server)


def _gated(options: dict[str, Any], base: str) -> Way:
    server = BASES[base](Shop())
    attachment = gate_server(server, _bound_gate(), **options)
    return _running(attachment.lowlevel, server)


def _running(lowlevel: Server[Any], server: Any) -> Way:
    """Return how a server of the user's own is run by itself, by its own means."""
    if isinstance(server, Server):
        return Way(
            lowlevel,
            server.streamable_http_app,
            lambda: anyio.run(_serve_stdio, server),
            lambda port: _serve_http(server, port),
        )
    if isinstance(server, MCPServer):
        return Way(
            lowlevel,
            server.streamable_http_app,
            server.run,
            lambda port: server.run("streamable-http", host="127.0.0.1", port=port),
        )
    return Way(
        lowlevel,
        lambda: server.http_app(path="/mcp"),
        lambda: server.run(show_banner=False),
        lambda port: server.run("http", host="127.0.0.1", port=port, show_banner=False),
    )


async def _serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _serve_http(server: Server[Any], port: int) -> None:
    import uvicorn

    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="warning")


WAYS: dict[str, Callable[[dict[str, Any]], Way]] = {
    "own": lambda options: _own(options, None),
    "base-lowlevel": lambda options: _own(options, "lowlevel"),
    "base-mcpserver": lambda options: _own(options, "mcpserver"),
    "base-fastmcp": lambda options: _own(options, "fastmcp"),
    "attach-lowlevel": lambda options: _attached(options, "lowlevel"),
    "attach-mcpserver": lambda options: _attached(options, "mcpserver"),
    "attach-fastmcp": lambda options: _attached(options, "fastmcp"),
    "gate-lowlevel": lambda options: _gated(options, "lowlevel"),
    "gate-mcpserver": lambda options: _gated(options, "mcpserver"),
    "gate-fastmcp": lambda options: _gated(options, "fastmcp"),
}


def make(way: str, *, keyed: bool, **options: Any) -> Way:
    """Make the server; `keyed` names the workflow in the argument `id`."""
    return WAYS[way]({**({"state_handle_key": "id"} if keyed else {}), **options})


if __name__ == "__main__":
    transport, port, way, *rest = sys.argv[1:] if sys.argv[1] == "http" else (sys.argv[1], "0", *sys.argv[2:])
    made = make(way, keyed="keyed" in rest)
    made.run_http(int(port)) if transport == "http" else made.run_stdio()
