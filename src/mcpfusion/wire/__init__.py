"""The only place that knows the MCP SDK: attaching to a server, menus and calls on the wire, running."""
