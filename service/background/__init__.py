"""Background work that APScheduler runs: the scheduling loop, training, forecasts, webhooks, pruning."""
