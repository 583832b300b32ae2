"""What several tiers of tests share: real servers, the outside world, drivers. No tests in here."""
