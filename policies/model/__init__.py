"""The vocabulary that every package shares: frozen values, and read-only protocols over the engine's live records."""
