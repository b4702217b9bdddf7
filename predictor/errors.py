"""What can go wrong with learning, in words for the person who reads it."""


class ArtifactError(Exception):
    """A stored model that must not be used: damaged, foreign, hostile, or made for other features or library versions."""


class TrainingError(Exception):
    """There is nothing to learn from: the message says how many jobs there are and how many it takes."""
