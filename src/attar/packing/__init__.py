"""A client's own PyTorch net as an upload: exported by torch, written as a graph.

``loading`` makes the net, ``export`` and ``from_torch`` its graph, ``torch_operators`` says what
each of torch's operators becomes, and ``pack`` checks the result.
"""

from attar.packing.loading import load_net
from attar.packing.pack import pack, pack_part

__all__ = ["load_net", "pack", "pack_part"]
