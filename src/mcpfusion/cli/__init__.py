"""The `mcpfusion` command. One module per command."""
