"""Conversations and their rules: messages, tools, structured output."""
