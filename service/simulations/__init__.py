"""What-if runs: policies on the service's past or on its queue as it is, for the command line and for the service."""
