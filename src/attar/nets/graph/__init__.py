"""Packed nets: foreign PyTorch nets as checked data, without code.

``format`` reads the text, ``arguments`` the arguments in it, ``operators`` is what a graph may
call, ``checks`` and ``shapes`` follow the shapes, and ``net`` is the module.
"""

from attar.nets.graph.format import FORMAT, Graph, read_graph
from attar.nets.graph.net import GraphNet

__all__ = ["FORMAT", "Graph", "GraphNet", "read_graph"]
