"""How long an iteration of a plan takes and how much memory it needs, from the shape of the model."""
