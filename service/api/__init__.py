"""The HTTP surface under /v1."""
