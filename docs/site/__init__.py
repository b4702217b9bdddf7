"""The documentation as a site: ``python -m docs.site [FOLDER]`` builds it, by default where the service serves it from."""
