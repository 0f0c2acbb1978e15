"""The only place that knows the MCP SDK: attaching to a server, the menu and the call on the wire, running."""
