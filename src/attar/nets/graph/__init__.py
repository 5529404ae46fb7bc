"""Packed nets: foreign PyTorch nets as checked data, without code."""

from attar.nets.graph.format import FORMAT, Graph, GraphNet, read_graph

__all__ = ["FORMAT", "Graph", "GraphNet", "read_graph"]
