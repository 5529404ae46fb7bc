"""What one client sends: one checked file, its signature, and which files take part."""

from attar.uploads.admission import Admission, admit, class_map_called
from attar.uploads.bundle import (
    CLIENT_NAME,
    Received,
    decode,
    encode,
    encode_broadcast,
    is_client_name,
    read_bundle,
    read_bundles,
    receive,
    write_bundle,
)
from attar.uploads.container import MAX_FILE, digest_of
from attar.uploads.manifest import (
    all_finite,
    class_name_problems,
    look,
    part_from_json,
    part_to_json,
    role_problems,
    shape_problems,
    statistics_problems,
    value_problems,
)
from attar.uploads.signing import Signer, generate_key, load_private, read_trusted, refuse, sign, signers_of

__all__ = [
    "CLIENT_NAME",
    "MAX_FILE",
    "Admission",
    "Received",
    "Signer",
    "admit",
    "all_finite",
    "class_map_called",
    "class_name_problems",
    "decode",
    "digest_of",
    "encode",
    "encode_broadcast",
    "generate_key",
    "is_client_name",
    "load_private",
    "look",
    "part_from_json",
    "part_to_json",
    "read_bundle",
    "read_bundles",
    "read_trusted",
    "receive",
    "refuse",
    "role_problems",
    "shape_problems",
    "sign",
    "signers_of",
    "statistics_problems",
    "value_problems",
    "write_bundle",
]
