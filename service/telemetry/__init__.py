"""What the service tells about itself: log lines (metrics and traces will live here too)."""
