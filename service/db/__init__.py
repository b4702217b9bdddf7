"""The database behind the store port: SQLModel tables, sessions, and the guarded transactions."""
