"""Publication of the policy to the engine, and when it is proved that it arrived."""

from dataclasses import dataclass

from stretto.config.sections import PublishConfig
from stretto.roles import InFlight
from stretto.runtime.parts import Parts
from stretto.runtime.phases import Phase
from stretto.runtime.probe import probe_weights
from stretto.types import Metrics

__all__ = ["Published", "Publisher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a publication cost, and the mean gap of log-probs in nats if it was proved."""

    sent: Metrics
    gap: float | None


class Publisher:
    """Publishes as ``publish`` in the recipe says. The first time counts from here on: every attempt is proved anew."""

    def __init__(self, parts: Parts, how: PublishConfig) -> None:
        self._parts, self._how = parts, how
        self._begun = False

    async def publish(self, version: int, index: int, phase: Phase, in_flight: InFlight = "drain") -> Published:
        """Send the weights as ``version``; if a proof is due, clear what is there before, and sample the first prompts
        of ``phase``, which is the run's at ``index``.

        Raises EngineError if they did not arrive, and if a deterministic run has an engine that is not batch-invariant.
        """
        how = self._how
        proves = how.check_weights == "always" or (how.check_weights == "once" and not self._begun)
        sent = await self._parts.publish(version, in_flight, clear=how.clear if proves else ())
        gap = None
        if proves:
            items = [phase.item_of(draw) for draw in range(2)]
            gap = await probe_weights(self._parts, index, items, phase.sampling, tolerance=how.tolerance)
        if self._parts.deterministic and not self._begun:
            await self._parts.rollers.probe_invariance()
        self._begun = True
        return Published(sent=sent, gap=gap)
