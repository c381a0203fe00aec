"""A load of many requests, for `rocmforge bench --serve`."""
