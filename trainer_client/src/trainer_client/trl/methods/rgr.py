"""RGR-GRPO: the last response of a group is refined from the best one, by the criteria that it fails.

G - 1 responses are sampled and judged. If the best of them satisfies every criterion, the last one is a sample like
them; otherwise the policy writes it from a prompt with the best response and its failed criteria (section 2.3). The
loss uses pi / pi_old unclipped for samples, and f(pi) = pi / (pi + gamma) on the plain prompt for the refined one. It
does not divide by the standard deviation or by a response's length, and has no KL divergence (section 3).
`trainer_client.refine` assesses groups and builds the prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from trainer_client.losses import shaped_probability
from trainer_client.refine import INSTRUCTION
from trainer_client.trl.methods.base import Method
from trainer_client.wire import Criterion

UNCLIPPED = 1e9
"""A clip that never applies; TRL requires a number."""


@dataclass(frozen=True, kw_only=True)
class Rgr(Method):
    """Mixed-policy advantages of samples and a refined response.

    Attributes:
        assessment: refine only if the best response fails a criterion (paper); otherwise the last response of every
            group is refined.
        shaping: whether a refined response contributes f(pi); otherwise it contributes pi / pi_old, as a sample does.
        gamma: the gamma of f (paper: 0.1).
        factual_only: whether only factual criteria are assessed, shown and rewarded.
        instruction: the last paragraph of a refinement's prompt: see `trainer_client.refine.INSTRUCTION`, and
            `BOXED_INSTRUCTION` for tasks with a final answer (appendix E.2).
        length_penalty: lambda and L* of the penalty subtracted from the reward (paper: 1e-4 and 2000 tokens), or None.
    """

    settings: ClassVar[Mapping[str, Any]] = {
        "beta": 0.0,
        "epsilon": UNCLIPPED,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "entropy_coef": 0.01,
        "vllm_importance_sampling_correction": False,
    }

    assessment: bool = True
    shaping: bool = True
    gamma: float = 0.1
    factual_only: bool = False
    instruction: str = INSTRUCTION
    length_penalty: Mapping[str, float] | None = field(
        default_factory=lambda: {"coefficient": 1e-4, "target_tokens": 2000}
    )

    def __post_init__(self) -> None:
        """Reject an empty instruction."""
        if not self.instruction.strip():
            raise ValueError("instruction is empty; say what a refined response should be, or leave the option out")

    @property
    def reward_defaults(self) -> Mapping[str, Any]:
        """The weighted mean, overridden if all factual criteria are satisfied, minus the length penalty."""
        penalty = {} if self.length_penalty is None else {"length_penalty": dict(self.length_penalty)}
        kinds = {"kinds": ("factual",)} if self.factual_only else {}
        return {"mode": "factual_override", "on_failure": "null", **kinds, **penalty}

    @property
    def always_refines(self) -> bool:
        """Whether to refine a group even if its best response fails no criterion."""
        return not self.assessment

    def assesses(self, criterion: Criterion) -> bool:
        """Whether a criterion is assessed, and shown if it fails."""
        return not self.factual_only or criterion.kind == "factual"

    def override_loss_inputs(
        self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """Make TRL's ratio f(pi) = pi / (pi + gamma) for refined responses, by setting pi_old to pi + gamma."""
        if not self.shaping or "refined" not in inputs:
            return {}
        plain = inputs.get("old_per_token_logps", logps.detach())
        shaped = torch.logaddexp(logps, logps.new_tensor(self.gamma).log())
        return {"old_per_token_logps": torch.where(inputs["refined"].unsqueeze(1), shaped, plain)}

    def loss_metrics(
        self, logps: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return the mean f(pi) over the tokens of refined responses."""
        if not self.shaping or "refined" not in inputs:
            return {}
        tokens = inputs["completion_mask"] * inputs["refined"].unsqueeze(1)
        weights = shaped_probability(logps.detach(), gamma=self.gamma)
        return {"rgr/shaped_weight": ((weights * tokens).sum(), tokens.sum())}
