"""Quantized weights under FSDP2: docs/sharding.md."""
