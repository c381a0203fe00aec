"""Endpoints that belong to no API of OpenAI, Anthropic or Ollama."""
