"""What one client sends: one checked file, its signature, and which files take part.

``bundle`` writes and reads upload files, ``container`` and ``manifest`` and ``checks`` say what is
checked in them, ``signing`` who sent them, and ``admission`` which of them take part.
"""

from attar.uploads.admission import (
    Admission,
    admit,
    check_inspected,
    parse_class_map,
    rename_classes,
)
from attar.uploads.bundle import (
    Received,
    decode,
    encode,
    encode_broadcast,
    read_bundle,
    read_bundles,
    receive,
    write_bundle,
)
from attar.uploads.checks import (
    all_finite,
    feature_width,
    role_problems,
    shape_problems,
    statistics_problems,
    value_problems,
)
from attar.uploads.container import MAX_FILE, read_digest
from attar.uploads.keys import (
    TrustedKeys,
    generate_key,
    load_private,
    public_text,
    read_trusted,
)
from attar.uploads.manifest import (
    CLIENT_NAME,
    class_name_problems,
    client_looks,
    describe_pair,
    is_client_name,
    normalise_name,
    part_from_json,
    part_to_json,
)
from attar.uploads.mapped import check_file
from attar.uploads.mixtures import AGREED, MIXTURES
from attar.uploads.signing import (
    MAX_SIGNATURE,
    Signer,
    check_signers,
    find_signers,
    sign,
    sign_page,
    signature_path,
    verify_page,
)
from attar.uploads.sums import LARGEST_SUM

__all__ = [
    "AGREED",
    "CLIENT_NAME",
    "LARGEST_SUM",
    "MAX_FILE",
    "MAX_SIGNATURE",
    "MIXTURES",
    "Admission",
    "Received",
    "Signer",
    "TrustedKeys",
    "admit",
    "all_finite",
    "check_file",
    "check_inspected",
    "check_signers",
    "class_name_problems",
    "client_looks",
    "decode",
    "describe_pair",
    "encode",
    "encode_broadcast",
    "feature_width",
    "find_signers",
    "generate_key",
    "is_client_name",
    "load_private",
    "normalise_name",
    "parse_class_map",
    "part_from_json",
    "part_to_json",
    "public_text",
    "read_bundle",
    "read_bundles",
    "read_digest",
    "read_trusted",
    "receive",
    "rename_classes",
    "role_problems",
    "shape_problems",
    "sign",
    "sign_page",
    "signature_path",
    "statistics_problems",
    "value_problems",
    "verify_page",
    "write_bundle",
]
