"""The commands about model files."""
