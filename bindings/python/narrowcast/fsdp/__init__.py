"""Quantized weights under FSDP2. docs/architecture.md ("One weight, one step") draws a step on two
ranks with its launches, collectives and waits; docs/sharding.md has the table of torch's features.
group.py has the hooks that FSDP2 calls and the plan of a group's gathers; torch_names.py and
torch_parameters.py have the private names of FSDP2.
"""
