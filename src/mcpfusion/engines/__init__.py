"""Engines: what moves a workflow. The built-in machine is one; a team's own statechart class can be another."""
