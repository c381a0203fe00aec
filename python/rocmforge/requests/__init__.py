"""Prompts on their way to the engine, and the names of their arguments."""
