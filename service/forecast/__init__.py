"""Forecasts of starts and ends: the production engine runs a snapshot of the live queue through sampled futures."""
