"""The server's half of a round: fuse the uploads, and make what clients start from next."""

from collections.abc import Sequence
from dataclasses import replace

from attar.core import Mixture, Part, Result, Server, Upload
from attar.errors import NeedsError, SpecError
from attar.federation.round import FederationRun, one_group_per_architecture
from attar.fusion import MethodRun, start_method, start_prepared
from attar.methods import method_name
from attar.training import ClientGroup


def fuse_round(run: FederationRun) -> Result:
    """Fuse the uploads of a round.

    Where another round follows, the models that its clients start from are made, too.

    Returns:
        The method's result.

    Raises:
        NeedsError: No client answered, or the method cannot work with those who did.
        SpecError: The method makes no model that some clients of the next round could start from.
    """
    state = run.state
    run.begin_fusion()
    uploads = [state.uploads[name] for name in run.clients if name in state.uploads]
    if not uploads:
        raise NeedsError(
            f"No client answered in round {state.round}.",
            problems=[f"{name}: {why}" for name, why in state.failed.items()],
        )
    server = run.server_of_round(uploads)
    result = _drive(run, "fuse", start_method(run.method, uploads, server), server)
    if state.round < run.rounds.rounds:
        state.start_models = [
            _start_model(run, group, result, uploads, server)
            for group in one_group_per_architecture(run.groups)
        ]
    state.memory = dict(result.memory)
    headline = next(iter(result.models.values()))
    state.model = headline if isinstance(headline, Part) else None
    return result


def _drive(run: FederationRun, stage: str, method_run: MethodRun, server: Server) -> Result:
    """Take the steps of a method as a stage of the round."""
    run.drive(
        stage,
        f"{stage} by {method_name(run.method)}",
        method_run.phases,
        method_run.state,
        history=[],
        seed=server.seed,
    )
    return method_run.result()


def _start_model(
    run: FederationRun,
    group: ClientGroup,
    result: Result,
    uploads: Sequence[Upload],
    server: Server,
) -> Part:
    """The fused model in the architecture of a group. Where the result has none of it, the server
    fuses once more, into a student of that architecture.
    """
    # An ensemble's members are the clients' own nets, which are no fused models.
    of_clients = {id(part) for upload in uploads for part in upload.parts.values()}
    for model in result.models.values():
        for part in model.members if isinstance(model, Mixture) else (model,):
            fits = (part.spec, part.preprocess) == (group.exchanged_spec, group.preprocess)
            if fits and id(part) not in of_clients:
                return part
    if not run.method.needs.student:
        raise SpecError(
            f"Method {method_name(run.method)} makes no {group.exchanged_spec} that the next "
            "round could start from.",
            fix="give all clients one architecture, or take a method with a student",
        )
    memory = dict(run.state.memory)
    if run.state.round > 1:  # goes on from the last one, as the headline's student does
        memory["model"] = next(
            part for part in run.state.start_models if part.spec == group.exchanged_spec
        )
    other = replace(
        server,
        student=group.exchanged_spec,
        student_preprocess=group.preprocess,
        initial=None,
        memory=memory,
    )
    # The needs were checked for the headline's student.
    method_run = start_prepared(run.method, run.method.prepare(uploads, other))
    second = _drive(run, f"fuse into {group.exchanged_spec}", method_run, other)
    (student,) = list(second.models.values())[:1]
    assert isinstance(student, Part), "a method with a student makes one net"
    return student
