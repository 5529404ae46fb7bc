"""Upload files as a forger writes them: taken apart, changed, and sealed under a correct hash.

A forger knows the format, so the hash must not be what ends an attack. Used by the tests of the
reader and by the corpus of hostile files.
"""

import hashlib
import json

from safetensors.torch import save

from attar.uploads.bundle import describe
from attar.uploads.container import BLANK, DIGEST, header_end


def compact(value):
    """JSON as it is written in upload files."""
    return json.dumps(value, separators=(",", ":"))


def unpack(file):
    """The header, the manifest in it, and the weights of a file."""
    end = header_end(file)
    header = json.loads(file[8:end])
    return header, json.loads(header["__metadata__"]["attar"]), file[end:]


def pack(header, weights):
    """A safetensors file with any text or bytes as its header."""
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + weights


def reseal(file):
    """The file under a correct hash; itself where it has no place, or several, for one."""
    places = list(DIGEST.finditer(file[: header_end(file)]))
    if len(places) != 1:
        return file
    start = places[0].start(1)
    blanked = file[:start] + BLANK + file[start + 64 :]
    return file[:start] + hashlib.sha256(blanked).hexdigest().encode() + file[start + 64 :]


def repack(header, manifest_text, weights):
    """A sealed file whose manifest is any text."""
    header = {**header, "__metadata__": {"attar": manifest_text}}
    return reseal(pack(compact(header), weights))


def encode_unchecked(upload):
    """The file that ``encode`` would write if it did not check the upload."""
    tensors = {
        f"{name}/{key}": tensor.clone()
        for name, part in upload.parts.items()
        for key, tensor in part.state.items()
    }
    return reseal(save(tensors, metadata={"attar": compact(describe(upload))}))
