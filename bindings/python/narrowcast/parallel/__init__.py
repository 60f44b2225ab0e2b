"""Quantized weights under torch's other ways to train on several ranks: docs/sharding.md."""
