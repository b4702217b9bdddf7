"""The scheduling engine: requests and reports in, one guarded transaction out. No web framework, no database, no clock."""
