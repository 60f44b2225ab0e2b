"""Optimizers that make the bytes of quantized weights in the pass that updates their values: each
with the signature, the defaults and the meaning of torch's of the same name.

A class says which options it takes, and gives a group's to the rule, runtime/rules/NAME.hpp. All
else is narrowcast.optimizer.FusedOptimizer, and does not depend on which rule it is.
"""

from narrowcast.optim.adam import Adam, AdamW, FusedAdam
from narrowcast.optim.lion import Lion
from narrowcast.optim.muon import Muon
from narrowcast.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "FusedAdam", "Lion", "Muon"]
