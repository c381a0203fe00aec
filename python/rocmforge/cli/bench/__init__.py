"""`rocmforge bench`."""
