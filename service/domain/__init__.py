"""Rules that belong to no framework: identities, keys, usage, webhooks, scores of forecasts. No database, no clock."""
