"""What the engine answers: generation, replies, stop strings, replay of turns, metrics."""
