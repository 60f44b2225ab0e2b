"""What Muon does before the launch that moves the values: momenta, whole matrices, and their
orthogonalization. The optimizer is narrowcast.optim.Muon.

    matrices.py       the matrices of a parameter: parts of its rows, slices; their scale
    newton_schulz.py  the iteration
    exchange.py       row shards become whole matrices, each on one rank, and row shards again
    directions.py     momenta and their step, and all of it for the parameters of a step
"""

from narrowcast.muon.directions import Directions
from narrowcast.muon.matrices import Matrix

__all__ = ["Directions", "Matrix"]
