"""Which tools a request may see and call: bindings, handles, the menu and the passage."""
