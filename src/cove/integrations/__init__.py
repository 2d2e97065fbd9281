"""Sandboxes for the programs of others: Inspect, SWE-ReX, mini-swe-agent."""
