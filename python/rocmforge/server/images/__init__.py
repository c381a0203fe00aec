"""Images that clients send."""
