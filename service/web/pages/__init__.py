"""The views: what each page reads of the API."""
