"""A batch of mutual learning: two nets of each client answer, and each takes a step.

The steps exist twice. On a CPU each half of a step is computed by itself: the reference. Where
steps are recorded (``blocks/execution``) a whole step is one recording, from the first answers to
the last update, with the learning rate as an input; so is a client's last, smaller batch, whose
recording serves whatever client has a batch of that size. There the knowledge network answers once:
the deployed model's step does not change it. A net with dropout then draws one mask for both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.blocks.execution import Outputs, Runner, eager, run_in_streams
from attar.training import stacking
from attar.training.objectives import Distance, Mutual
from attar.training.optimisers import Tensors, clip_gradients
from attar.training.options import LocalTraining
from attar.training.stacking import Call
from attar.training.step import (
    Slicer,
    TrainingState,
    apply_gradients,
    choose_runner,
    compute_gradients,
    update_weights,
)

DEPLOYED = "deployed"
KNOWLEDGE = "knowledge"
IN_TURN = ("updated", "accumulated")  # the deployed model steps first
STREAMS = 12  # nets that share a GPU: 12 pairs took 11.7 s a round by 4, 11.3 by 8, 8.8 by 12
RECORD_WHOLE_STEPS = True  # False: halves of steps, to compare with


class NetPair(nn.Module):
    """Two nets that see the same images."""

    def __init__(self, deployed: nn.Module, knowledge: nn.Module) -> None:
        super().__init__()
        self.deployed = deployed
        self.knowledge = knowledge

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of both nets."""
        return self.deployed(images), self.knowledge(images)


def logit_distance(kind: Distance, learner: Tensor, peer: Tensor) -> Tensor:
    """Return each client's distance between the answers of two nets, (K,).

    Args:
        kind: "kl" for Eq. (2), the mean over the batch of KL(peer || learner); "mse" for the mean
            squared difference of the logits.
        learner: Logits (K, B, C) of the net that learns.
        peer: Logits (K, B, C) of the net that it learns from.
    """
    if kind == "mse":
        dtype = torch.promote_types(learner.dtype, torch.float32)
        return (learner.to(dtype) - peer.to(dtype)).square().flatten(1).mean(1)
    divergence = F.kl_div(
        learner.log_softmax(-1), peer.log_softmax(-1), reduction="none", log_target=True
    )
    return divergence.sum(-1).mean(1)


def mutual_loss(kind: Distance, learner: Tensor, peer: Tensor, labels: Tensor) -> Tensor:
    """Return each client's Eq. (3), (K,): the cross entropy (1) plus the distance from the peer.

    Args:
        kind: Which distance.
        learner: Logits (K, B, C) of the net that learns.
        peer: Logits (K, B, C) of the net that it learns from.
        labels: (K, B).
    """
    cross_entropy = stacking.mean_cross_entropy(learner, labels)
    return cross_entropy + logit_distance(kind, learner, peer)


@dataclass(frozen=True)
class PairSteps:
    """Takes the steps of all pairs of one architecture, in place.

    Attributes:
        net: Lends its code.
        mutual: How the nets learn from each other.
        training: The hyper-parameters of both nets.
        slicer: How stacks are sliced.
        run: Executes steps.
        rest_run: Executes steps on last, smaller batches.
    """

    net: NetPair
    mutual: Mutual
    training: LocalTraining
    slicer: Slicer
    run: Runner
    rest_run: Runner

    def step(self, state: TrainingState, call: Call, images: Tensor, labels: Tensor) -> Tensor:
        """Step both nets of the clients of a call.

        Args:
            state: Of all clients.
            call: Which of them.
            images: (k, B, ...).
            labels: (k, B).

        Returns:
            The losses (k,) of the deployed models before it.
        """
        if RECORD_WHOLE_STEPS and self.run is not eager:
            return self._record_step(state, call, images, labels)
        if self.mutual.peer in IN_TURN:
            return self._step_in_turn(state, call, images, labels)
        return self._step_together(state, call, images, labels)

    # --- halves of steps: the reference ---

    def _step_in_turn(
        self, state: TrainingState, call: Call, images: Tensor, labels: Tensor
    ) -> Tensor:
        """Take Algorithm 1's lines 6 and 7."""
        kind = self.mutual.distance
        accumulates = self.mutual.peer == "accumulated"
        training = self.training
        slicer = self.slicer
        params = slicer(state.params, call)
        buffers = slicer(state.buffers, call)

        def deployed_gradients(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
            def loss(deployed: Tensor, knowledge: Tensor) -> Tensor:
                peer = knowledge if accumulates else knowledge.detach()
                return mutual_loss(kind, deployed, peer, labels)

            only = "" if accumulates else DEPLOYED
            losses, grads = self._gradients(params, buffers, images, loss, only)
            return losses, self._clip(grads, DEPLOYED)

        def knowledge_gradients(
            images: Tensor, labels: Tensor, *kept: Tensor
        ) -> tuple[Tensor, Tensors]:
            def loss(deployed: Tensor, knowledge: Tensor) -> Tensor:
                return mutual_loss(kind, knowledge, deployed.detach(), labels)

            # running statistics follow the first pass alone
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            losses, grads = self._gradients(params, copies, images, loss, KNOWLEDGE)
            return losses, self._clip(_add(grads, dict(zip(kept_names, kept, strict=True))))

        lr = training.rate(state.step)
        run = choose_runner(self.run, call, training.batch_size)
        inputs = (images, labels)
        losses, grads = compute_gradients(deployed_gradients, inputs, state, call, run)
        losses = losses.clone()  # the next recording may write over them
        deployed = _of_net(grads, DEPLOYED)
        kept = {name: grad for name, grad in grads.items() if name not in deployed}
        kept_names = list(kept)
        apply_gradients(deployed, state, call, training, lr, slicer=slicer)  # line 6
        _, grads = compute_gradients(
            knowledge_gradients, (*inputs, *kept.values()), state, call, run, part=", knowledge"
        )
        # line 7
        apply_gradients(grads, state, call, training, lr, is_new_step=False, slicer=slicer)
        return losses

    def _step_together(
        self, state: TrainingState, call: Call, images: Tensor, labels: Tensor
    ) -> Tensor:
        """Step both nets by the gradients of one pass."""
        kind = self.mutual.distance
        training = self.training
        slicer = self.slicer
        params = slicer(state.params, call)
        buffers = slicer(state.buffers, call)

        def gradients(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensors]:
            def loss(deployed: Tensor, knowledge: Tensor) -> Tensor:
                return torch.stack(self._joint_losses(kind, deployed, knowledge, labels))

            losses, grads = self._gradients(params, buffers, images, loss)
            return losses[0], self._clip(grads)

        run = choose_runner(self.run, call, training.batch_size)
        losses, grads = compute_gradients(gradients, (images, labels), state, call, run)
        lr = training.rate(state.step)
        apply_gradients(grads, state, call, training, lr, slicer=slicer)
        return losses

    def _joint_losses(
        self, kind: Distance, deployed: Tensor, knowledge: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        attached = self.mutual.peer == "attached"
        of_deployed = deployed if attached else deployed.detach()
        of_knowledge = knowledge if attached else knowledge.detach()
        return (
            mutual_loss(kind, deployed, of_knowledge, labels),
            mutual_loss(kind, knowledge, of_deployed, labels),
        )

    def _gradients(
        self,
        params: Tensors,
        buffers: Tensors,
        images: Tensor,
        loss_of_logits: Callable[[Tensor, Tensor], Tensor],
        only: str = "",
    ) -> tuple[Tensor, Tensors]:
        """Return losses and gradients.

        Args:
            params: Of both nets, stacked.
            buffers: Of both nets, stacked; running statistics are updated in place.
            images: (K, B, ...).
            loss_of_logits: Gives the losses of both nets' logits.
            only: The net to differentiate by; "" for both.
        """
        moving = _of_net(params, only) if only else dict(params)
        fixed = {name: value for name, value in params.items() if name not in moving}

        def loss(leaves: Tensors) -> Tensor:
            both = {**fixed, **leaves}
            return loss_of_logits(*stacking.forward(self.net, both, buffers, images))

        return stacking.differentiate(loss, moving)

    def _clip(self, grads: Tensors, *nets: str) -> Tensors:
        """Clip the gradients of each net by themselves; of all nets unless some are named."""
        if self.training.clip is None:
            return grads
        clipped = dict(grads)
        for net in nets or (DEPLOYED, KNOWLEDGE):
            if own := _of_net(grads, net):
                clipped |= clip_gradients(own, self.training.clip)
        return clipped

    # --- a whole step as one recording ---

    def _record_step(
        self, state: TrainingState, call: Call, images: Tensor, labels: Tensor
    ) -> Tensor:
        """Do what ``step`` does by one recording."""
        rate = torch.full(
            (), self.training.rate(state.step), dtype=state.dtype, device=images.device
        )

        def in_place(images: Tensor, labels: Tensor, rate: Tensor) -> Outputs:
            tensors = [state.params, state.buffers, *state.moments.values()]
            params, buffers, *moments = [self.slicer(value, call) for value in tensors]
            counts = state.counts[call.first : call.last]
            named = dict(zip(state.moments, moments, strict=True))
            return (self._take_step(params, buffers, named, counts, images, labels, rate),)

        def anywhere(images: Tensor, labels: Tensor, rate: Tensor, rows: Tensor) -> Outputs:
            tensors = [state.params, state.buffers, *state.moments.values()]
            params, buffers, *moments = [_gather(value, rows) for value in tensors]
            counts = state.counts[rows]
            named = dict(zip(state.moments, moments, strict=True))
            losses = self._take_step(params, buffers, named, counts, images, labels, rate)
            for stack, values in zip(tensors, [params, buffers, *moments], strict=True):
                _scatter(stack, rows, values)
            state.counts[rows] = counts
            return (losses,)

        losses: Tensor
        if call.number == self.training.batch_size:
            name = f"pairs {call.first} to {call.last}"
            (losses,) = self.run(name, in_place, (images, labels, rate), (state,))
        else:
            rows = torch.arange(call.first, call.last, device=images.device)
            inputs = (images, labels, rate, rows)
            (losses,) = self.rest_run("last pairs", anywhere, inputs, (state,))
        return losses

    def _take_step(
        self,
        params: Tensors,
        buffers: Tensors,
        moments: Mapping[str, Tensors],
        counts: Tensor,
        images: Tensor,
        labels: Tensor,
        rate: Tensor,
    ) -> Tensor:
        """Step both nets of some clients, in place; all arguments are stacked."""
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        # ``laid_out`` lives until the last backward pass
        (deployed, knowledge), laid_out = self._answer(leaves, buffers, images)
        kind = self.mutual.distance

        def update(grads: Tensors, *, is_new_step: bool) -> None:
            clipped = self._clip(grads)
            update_weights(
                params, clipped, moments, counts, self.training, rate, is_new_step=is_new_step
            )

        if self.mutual.peer not in IN_TURN:
            losses, of_knowledge = self._joint_losses(kind, deployed, knowledge, labels)
            grads = _differentiate(losses + of_knowledge, leaves)
            update(grads, is_new_step=True)
            return losses.detach()
        accumulates = self.mutual.peer == "accumulated"
        peer = knowledge if accumulates else knowledge.detach()
        losses = mutual_loss(kind, deployed, peer, labels)
        wanted = leaves if accumulates else _of_net(leaves, DEPLOYED)
        grads = _differentiate(losses, wanted, keep_graph=accumulates)
        update(_of_net(grads, DEPLOYED), is_new_step=True)  # line 6
        kept = _of_net(grads, KNOWLEDGE)
        with torch.no_grad():
            # running statistics follow the first pass alone
            copies = {name: value.clone() for name, value in _of_net(buffers, DEPLOYED).items()}
            (again,), _ = self._answer(_of_net(params, DEPLOYED), copies, images, DEPLOYED)
        of_knowledge = mutual_loss(kind, knowledge, again, labels)
        grads = _differentiate(of_knowledge, _of_net(leaves, KNOWLEDGE))
        update(_add(grads, kept), is_new_step=False)  # line 7
        del laid_out
        return losses.detach()

    def _answer(
        self, params: Tensors, buffers: Tensors, images: Tensor, *nets: str
    ) -> tuple[list[Tensor], object]:
        """Return the logits (K, B, C) of nets, and what must live until their backward pass ends.

        Nets that run one by one run all at once, in streams.

        Args:
            params: Of these nets, stacked.
            buffers: Of these nets, stacked; running statistics are updated in place.
            images: (K, B, ...).
            nets: Which; both unless given.
        """
        codes = {DEPLOYED: self.net.deployed, KNOWLEDGE: self.net.knowledge}
        logits: dict[str, Tensor] = {}
        laid_out: dict[str, list[dict[str, Tensor]]] = {}
        calls: list[Callable[[], Tensor]] = []
        for name in nets or (DEPLOYED, KNOWLEDGE):
            code, weights, own = codes[name], _inside(params, name), _inside(buffers, name)
            if stacking.runs_one_by_one(code, images):
                laid_out[name] = stacking.lay_out_clients(weights, for_cuda=images.is_cuda)
                calls += stacking.client_calls(code, laid_out[name], own, images)
            else:
                logits[name] = stacking.forward_stacked(code, weights, own, images)
        if calls:
            outputs = iter(run_in_streams(calls, images.device, STREAMS))
            for name in laid_out:
                logits[name] = torch.stack([next(outputs) for _ in images])
        return [logits[name] for name in nets or (DEPLOYED, KNOWLEDGE)], laid_out


def _of_net(tensors: Tensors, net: str) -> dict[str, Tensor]:
    """Return the tensors of one net of a pair."""
    return {name: value for name, value in tensors.items() if name.startswith(f"{net}.")}


def _inside(tensors: Tensors, net: str) -> dict[str, Tensor]:
    """Return the tensors of one net of a pair by their names in that net."""
    return {name[len(net) + 1 :]: value for name, value in _of_net(tensors, net).items()}


def _add(grads: Tensors, others: Tensors) -> Tensors:
    """Return the sums of two gradients; ``others`` may lack parameters."""
    return {name: grad + others[name] if name in others else grad for name, grad in grads.items()}


def _differentiate(
    losses: Tensor, leaves: Tensors, *, keep_graph: bool = False
) -> dict[str, Tensor]:
    """Return the gradients of the summed losses; parameters without one are absent.

    They lie like the parameters, or the optimiser could not take all of them in one call.
    """
    grads = torch.autograd.grad(
        losses.sum(), list(leaves.values()), allow_unused=True, retain_graph=keep_graph
    )
    by_name = zip(leaves, grads, strict=True)
    return {name: grad.contiguous() for name, grad in by_name if grad is not None}


def _gather(tensors: Tensors, rows: Tensor) -> dict[str, Tensor]:
    """Return copies of some rows of stacks."""
    return {name: value.index_select(0, rows) for name, value in tensors.items()}


def _scatter(tensors: Tensors, rows: Tensor, values: Tensors) -> None:
    """Put rows back into stacks, in place."""
    for name, value in tensors.items():
        value.index_copy_(0, rows, values[name])
