"""Everstep's SDK: durable steps for AI agents."""
