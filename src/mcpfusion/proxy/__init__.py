"""Servers in front of servers that are not ours, from a config file alone."""
