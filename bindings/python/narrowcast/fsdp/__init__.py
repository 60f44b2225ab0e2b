"""Quantized weights under FSDP2. docs/architecture.md ("One weight, one step") draws a step on two
ranks and says what it launches, communicates and waits for; docs/sharding.md has what works and
what does not. group.py has the hooks that FSDP2 calls and the plan of a group's gathers;
torch_names.py and torch_parameters.py have every private name of FSDP2.
"""
