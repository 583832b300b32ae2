"""All tests; each tier is a folder, `kind/` brings up a cluster and `support/` holds what several tiers share."""
