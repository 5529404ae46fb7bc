"""A classifier in an ONNX file as an upload: for partners with TensorFlow or scikit-learn.

``file`` reads and checks the file, ``outputs`` finds its logits, ``net`` computes its graph with
torch (``operators``, ``shapes``), and ``pack`` compares the result with onnxruntime. From there on
the net is packed like any other module of torch.
"""

from attar.packing.onnx.pack import PackedOnnx, pack_onnx

__all__ = ["PackedOnnx", "pack_onnx"]
