"""Errors of training and of stored models."""


class ArtifactError(Exception):
    """A stored model that must not be used: damaged, foreign, hostile, or made for other features or library versions."""


class TrainingError(Exception):
    """Too few jobs to train on: the message names how many there are and how many are needed."""
