"""How values and progress look on terminals and in notebooks."""
