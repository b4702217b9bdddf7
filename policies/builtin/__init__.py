"""The built-in policies, one order of jobs a module."""
