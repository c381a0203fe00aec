"""Readers of the formats in which models write reasoning and tool calls."""
