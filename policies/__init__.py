"""Deciding: which job runs next, where, and whether something must make way.

Everything here is pure: no clock, no randomness, no environment, no input or output. A decision is a function of what it
is given, so that the live service and the simulator share every line.
"""
