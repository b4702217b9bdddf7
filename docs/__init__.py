"""The documentation, and the programs that write its reference pages (``python -m docs.generate``)."""
