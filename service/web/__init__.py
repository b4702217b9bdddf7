"""The dashboard: pages for browsers, made of the documents of the HTTP API."""
