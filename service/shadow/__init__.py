"""A second policy that decides beside the live one and is never obeyed."""
