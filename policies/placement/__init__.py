"""Placing a gang: the pool of free GPUs, the choice of servers, and the mapping of replicas to them."""
