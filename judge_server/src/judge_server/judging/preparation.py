"""Make a judging configuration ready for a judge: its templates, its calibration and its fingerprint.

What cannot be asked of the judge is refused here, before anything is planned.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from judge_server.errors import InvalidRequest, invalid_field
from judge_server.judging.calibration import NEUTRAL, Calibration, CalibrationSet, StoredCalibration
from judge_server.judging.prompts import PromptForm, PromptTemplates
from judge_server.judging.prompts.library import Declaration, TemplateLibrary, template_error
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.ports import EngineIdentity
from trainer_client.wire import RATIONALE_TOKENS

_PROTOCOL = "judging.protocol"
_CONTEXTUAL = "judging.contextual_calibration"
_MAX_PREPARED_CONFIGS = 256


class Preparer:
    """Makes judging configurations ready for the model that judges now, and remembers them.

    Args:
        templates: the template sets that a request can name.
        calibrations: what was measured of judges, as shipped.
        min_choice_mass: the least mass on its choices that a verdict is read from.
        cache_salt: returns what enters the digests of the current caller's calls; callers share verdicts if it is
            equal.
    """

    def __init__(
        self,
        templates: TemplateLibrary | None = None,
        calibrations: CalibrationSet | None = None,
        min_choice_mass: float = MIN_CHOICE_MASS,
        cache_salt: Callable[[], str] = str,
    ) -> None:
        self.templates = templates or TemplateLibrary(None)
        self._calibrations = calibrations or CalibrationSet()
        self._stored: tuple[StoredCalibration, ...] = ()
        self._min_choice_mass = min_choice_mass
        self._cache_salt = cache_salt
        self._prepared: dict[tuple[EngineIdentity, JudgingConfig], PreparedConfig] = {}

    @property
    def stored(self) -> Sequence[StoredCalibration]:
        """The stored calibrations that are applied, instead of those that ship with the package."""
        return self._stored

    @stored.setter
    def stored(self, stored: Sequence[StoredCalibration]) -> None:
        if tuple(stored) != self._stored:
            self._stored = tuple(stored)
            self._prepared.clear()

    def refused(self, identity: EngineIdentity) -> list[str]:
        """Return the stored calibrations that were fitted for other weights, engines or templates than these."""
        refused = []
        for stored in self._stored:
            try:
                prepared = self.prepare(identity, JudgingConfig(**stored.config))
            except (InvalidRequest, TypeError):  # a configuration of another release has other options
                refused.append(stored.reference)
            else:
                if prepared.uncalibrated != stored.judge:
                    refused.append(stored.reference)
        return refused

    def prepare(self, identity: EngineIdentity, config: JudgingConfig) -> PreparedConfig:
        """Return the templates, calibration and fingerprint of a judge for a configuration.

        Raises:
            InvalidRequest: the template set does not exist or cannot be used under this protocol, or the judge is
                unfit for the protocol.
        """
        prepared = self._prepared.get((identity, config))
        if prepared is None:
            prepared = self._prepare(identity, config)
            if identity.asks and identity.asks != prepared.wording:
                raise invalid_field(
                    "judging",
                    f"{identity.model} is a probe: it answers one question, in the words that it was fitted to "
                    "(adjudge probe show), and this request asks another one or asks it in other words",
                )
            if len(self._prepared) >= _MAX_PREPARED_CONFIGS:
                self._prepared.clear()
            self._prepared[identity, config] = prepared
        salt = self._cache_salt()
        return replace(prepared, cache_salt=salt) if salt else prepared

    def _prepare(self, identity: EngineIdentity, config: JudgingConfig) -> PreparedConfig:
        self._refuse_unfit(identity, config.protocol)
        typed = identity.capabilities.typed_questions
        if typed:
            _refuse_what_must_be_written(config)
        template_set = self.templates.find(config.template)
        declaration = template_set.declaration
        _refuse_other_protocols(config, declaration)
        _refuse_without_passages(config, typed=typed)
        single_templates, multi_templates = [
            PromptTemplates(
                PromptForm(config.protocol, config.rationale, several, typed, config.steps), template_set.templates
            )
            for several in (False, True)
        ]
        digests = (single_templates.digest, multi_templates.digest, *declaration.digest_parts)
        fitted = None
        if config.contextual:
            _refuse_incomparable(identity, config)
            digests = (*digests, "content-free weight 1.0")
        elif config.plain and not declaration.digest_parts:
            fitted = self._calibrations.find(identity.weights_digest, config.protocol, single_templates.digest)
        uncalibrated = judge_fingerprint(identity, digests, config, NEUTRAL, self._min_choice_mass)
        shipped = NEUTRAL if fitted is None else fitted.calibration
        calibration = self._stored_for(identity, config, uncalibrated) or shipped
        return PreparedConfig(
            config,
            single_templates,
            multi_templates,
            judge_fingerprint(identity, digests, config, calibration, self._min_choice_mass),
            calibration,
            self._calibrations.kinds_without_steps(identity.weights_digest),
            declaration,
            self._min_choice_mass,
            uncalibrated,
            model=identity.model,
        )

    def _stored_for(self, identity: EngineIdentity, config: JudgingConfig, uncalibrated: str) -> Calibration | None:
        """Return the stored calibration for a configuration, if there is one.

        Raises:
            InvalidRequest: it was fitted for this configuration of another judge, so its numbers mean nothing here.
        """
        asked = config.recorded()
        for stored in self._stored:
            if stored.judge == uncalibrated:
                return stored.calibration
            if stored.config == asked:
                raise invalid_field(
                    _PROTOCOL,
                    f"the calibration {stored.reference} does not hold for {identity.model}: its weights, its "
                    "engine or the prompt templates have changed since; fit it again with `adjudge calibrate`, or take "
                    "it out of ADJUDGE_CALIBRATIONS",
                )
        return None

    def _refuse_unfit(self, identity: EngineIdentity, protocol: str) -> None:
        unfit = self._calibrations.why_unfit(identity.weights_digest, protocol)
        if unfit is not None:
            raise invalid_field(
                _PROTOCOL,
                f"{identity.model} {unfit.reason}, so its {protocol} scores mean nothing; "
                f"use {unfit.instead}, or a stronger judge",
            )


def require_probabilities(identity: EngineIdentity, field: str) -> None:
    """Refuse an option that needs the probability of yes; `field` is the option's field in the request.

    Raises:
        InvalidRequest: the judge gives no probabilities.
    """
    if not identity.capabilities.logprobs:
        raise invalid_field(
            field,
            f"the judge {identity.model} gives no probabilities, which this option needs; leave it out, or "
            "use a judge on an engine that reads probabilities",
        )


def check_votes(identity: EngineIdentity, config: JudgingConfig, votes: int) -> None:
    """Refuse several votes on a verdict that involves no sampling.

    Raises:
        InvalidRequest: the engine reads the exact probability of a plain verdict, so all votes would be the same.
    """
    if votes > 1 and identity.capabilities.logprobs and config.plain:
        raise invalid_field(
            "judging.votes",
            f"this judge reads the exact probability of a {config.protocol} verdict in one call, so {votes} votes "
            "would all be the same; leave votes out, or have something sampled: rationale, think_tokens"
            + ("" if config.protocol == "likert" else ", or several criteria per call"),
        )


def _refuse_incomparable(identity: EngineIdentity, config: JudgingConfig) -> None:
    """Raise `InvalidRequest` if contextual calibration, which the request asks for, is impossible here."""
    require_probabilities(identity, _CONTEXTUAL)
    if not config.comparable or identity.capabilities.typed_questions:
        raise invalid_field(
            _CONTEXTUAL,
            "contextual calibration compares two answers of yes or no, so it needs the protocol binary or "
            "stepwise, one criterion per call, no rationale, no think_tokens, and a judge that is no decision "
            "model; change these, or leave it out",
        )


def _refuse_other_protocols(config: JudgingConfig, declaration: Declaration) -> None:
    if declaration.protocols is not None and config.protocol not in declaration.protocols:
        raise template_error(
            f"the template set {config.template!r} is for {' or '.join(declaration.protocols)}, but this request uses "
            f"{config.protocol}; choose another set, or a mode or protocol that it supports"
        )
    if declaration.lead and not config.plain:
        raise template_error(
            f"the template set {config.template!r} asks for one verdict at once; leave out rationale, think_tokens and "
            "criteria_per_call"
        )


def _refuse_without_passages(config: JudgingConfig, *, typed: bool) -> None:
    """Refuse passages where a call is about more than one criterion, or about the whole response."""
    alone = config.protocol in ("binary", "graded") and config.per_call == 1 and not config.contextual
    if config.passages is not None and (typed or not alone):
        raise invalid_field(
            "judging.passages",
            "passages are chosen for one criterion at a time; use the protocol binary or graded, one criterion per "
            "call, no contextual_calibration and a judge that is no decision model, or leave passages out",
        )


def _refuse_what_must_be_written(config: JudgingConfig) -> None:
    """Refuse what a decision model cannot do: it writes nothing, and takes every criterion as a question of its own."""
    field, message = "", ""
    if config.protocol == "checklist":
        field, message = _PROTOCOL, "a checklist is written as one answer; use graded"
    elif not config.plain:
        field = "judging"
        message = "leave out rationale, think_tokens and criteria_per_call: all criteria of a response share a request"
    if field:
        message = f"this judge is a decision model, which answers typed questions and writes nothing; {message}"
        raise invalid_field(field, message)


def judge_fingerprint(
    identity: EngineIdentity,
    template_digests: tuple[str, ...],
    config: JudgingConfig,
    calibration: Calibration = NEUTRAL,
    min_choice_mass: float = MIN_CHOICE_MASS,
) -> str:
    """Hash the model, weights, engine build, chat template, decoding, prompt templates, configuration and calibration.

    A calibration enters with its numbers only, and a neutral one adds nothing. `min_choice_mass` enters if
    probabilities are read.
    """
    parts = asdict(identity)
    del parts["concurrent_batches"], parts["context_tokens"]  # capacity: no verdict depends on it
    del parts["asks"]  # the digest of the weights tells a probe from its judge
    if not identity.capabilities.typed_questions:  # added later: every other judge keeps its fingerprint
        del parts["capabilities"]["typed_questions"]
    if not identity.capabilities.images:
        del parts["capabilities"]["images"]
    asked = config.recorded()
    del asked["template"]  # the digest is included; the name may be reused for other texts
    if config.protocol in ("graded", "likert"):
        asked["grade"] = "expected"  # once the most likely grade: do not mix cached verdicts
    if identity.capabilities.logprobs and config.protocol != "checklist":
        asked["min_choice_mass"] = min_choice_mass
    whole = [parts, template_digests, asked, RATIONALE_TOKENS if config.rationale else 0]
    if calibration.numbers:
        whole.append(calibration.numbers)
    canonical = json.dumps(whole, sort_keys=True)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
