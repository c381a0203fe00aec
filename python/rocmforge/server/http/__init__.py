"""HTTP below the endpoints: access, bounds, bodies, threads and streams."""
