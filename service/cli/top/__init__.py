"""``sooner top``: the cluster in the terminal. Only :mod:`service.cli.top.command` is imported without Textual."""
