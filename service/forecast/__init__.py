"""When jobs will start and end: the live snapshot run through sampled futures by the production engine."""
