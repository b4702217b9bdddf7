"""Learning: how many iterations a job will train, from the history that a cluster already has."""
