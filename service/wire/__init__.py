"""The JSON of the HTTP API, defined once for the service and its client: bodies of requests and documents of answers.

Documents are typed dictionaries: the API validates and describes them through pydantic, and the client uses them as types
alone, so that it imports neither this package nor pydantic. Bodies are pydantic models. Keys are only ever added.
"""
