"""``attar inspect``: check upload files and show what they reveal."""

from pathlib import Path

from tyro.conf import Positional

from attar.blocks.heads import SUMS, part_problems
from attar.cli.arguments import Json, RequireSignatures, Trusted
from attar.cli.output import console, tables
from attar.errors import BundleError
from attar.fusion import find_broken_answers, find_one_answers
from attar.privacy import describe_upload
from attar.uploads import check_signers, find_signers, read_trusted, receive


def inspect(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    trusted: Trusted = None,
    require_signatures: RequireSignatures = False,
    json: Json = False,
) -> None:
    """Check upload files and their signatures, and show what they reveal."""
    keys = None if trusted is None else read_trusted(trusted)
    received = receive(files, resident=False)  # thousands of files, each looked at once
    broken = find_broken_answers([file.upload for file in received])
    signers = find_signers(received, keys, require=require_signatures)
    one_answers = {
        found.client: found for found in find_one_answers([file.upload for file in received])
    }
    record = [
        {
            **describe_upload(file.upload, file.bytes),
            "sha256": file.sha256,
            "signature": signers[file.upload.client].as_json(),
            "one_answer": None
            if (found := one_answers.get(file.upload.client)) is None
            else {"answer": found.answer, "share": found.share},
            "broken_answers": [str(one) for one in broken if one.client == file.upload.client],
        }
        for file in received
    ]

    def show() -> None:
        uploads = [file.upload for file in received]
        signed = any(signer.status != "unsigned" for signer in signers.values())
        tables.show_uploads(
            uploads,
            [file.bytes for file in received],
            signers if signed or keys is not None else None,
        )
        tables.show_revelations(uploads)
        for warning in (*broken, *one_answers.values()):
            console.say(f"warning: {warning}")

    console.emit(record, show, json=json)
    problems = [
        f"{file.path}: {reason}"
        for file in received
        if SUMS in file.upload.parts
        for reason in part_problems(file.upload.parts[SUMS])
    ]
    if problems:
        raise BundleError(
            "These sums cannot be those of images:",
            problems=problems,
            fix="write the file again, or ask the sender for it",
        )
    check_signers(signers, keys, require=require_signatures)
