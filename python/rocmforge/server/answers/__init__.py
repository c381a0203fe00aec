"""Answers of the engine: generation, replies, stop strings, replay of turns, metrics."""
