"""The models of a server: which there are, which are loaded, and their memory."""
