"""Captures of CUDA graphs."""

import torch


def captured(run):
    """A graph of run(), on a stream of its own as torch wants it."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return graph
