"""What runs beside the API: the scheduling loop, training, forecasts, webhooks, pruning (APScheduler)."""
