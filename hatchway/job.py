"""Payload models of what a job says of itself: the container that it wants, and how much of a machine it takes."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, field_validator, model_validator

from hatchway.errors import InvalidReference
from hatchway.payloads import Payload, SecretRef, Text
from hatchway.quantities import parse_cpus, parse_memory
from hatchway.registry.reference import parse_reference


class EnvSecret(Payload):
    """An environment value that is resolved where the agent is spawned."""

    secret: SecretRef


EnvValue = str | EnvSecret

ROTATE = "secrets are passed by reference only; rotate the value that was sent here: it already lies in history"


class ContainerAuth(Payload):
    """Registry credentials of a job, by reference. `*Secret` is `<context>:<secret-name>`."""

    registry: Text | None = None
    username: Text | None = None
    usernameSecret: SecretRef | None = None  # noqa: N815 - the job definition's own spelling
    tokenSecret: SecretRef | None = None  # noqa: N815

    @model_validator(mode="before")
    @classmethod
    def _refuse_material(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for field in ("usernameValue", "tokenValue"):
                if field in data:
                    raise ValueError(f"{field} is refused: {ROTATE}")
        return data


class ContainerSpec(Payload):
    """The container that a job wants: an image, or a dockerfile that its agent builds."""

    image: Text | None = None
    dockerfile: Text | None = None
    context: Text | None = None
    target: Text | None = None
    args: dict[str, str] | None = None
    env: dict[str, EnvValue] = {}
    auth: ContainerAuth | None = None

    @field_validator("image")
    @classmethod
    def _image_parses(cls, image: str | None) -> str | None:
        if image is not None:
            try:
                parse_reference(image)
            except InvalidReference as e:
                raise ValueError(str(e)) from None
        return image

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.image is None) == (self.dockerfile is None):
            raise ValueError("needs either image or dockerfile, and not both")
        if self.image is not None and (self.context or self.target or self.args):
            raise ValueError("context, target and args belong to a dockerfile, not to an image")
        if self.dockerfile is not None and self.auth is not None and not self.auth.registry:
            raise ValueError(
                "auth.registry is required with a dockerfile: its FROM does not say which host to log in to"
            )
        return self


def _amount_of_cpus(amount: Any) -> Any:
    if isinstance(amount, int | float | str):
        parse_cpus(amount)
    return amount


def _amount_of_memory(amount: Any) -> Any:
    if isinstance(amount, int | float | str):
        parse_memory(amount)
    return amount


class ResourceAmounts(Payload):
    """CPUs as a number (0.5 is half a core) or `500m`; memory as bytes or `512m`, `2Gi` (1024-based)."""

    cpus: Annotated[float | str | None, BeforeValidator(_amount_of_cpus)] = None
    memory: Annotated[int | str | None, BeforeValidator(_amount_of_memory)] = None


class ResourceRequest(Payload):
    """What is reserved, and what the compute may use at most. `{cpus, memory}` alone means both."""

    requests: ResourceAmounts | None = None
    limits: ResourceAmounts | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        if isinstance(data, dict) and data and set(data) <= {"cpus", "memory"}:
            return {"limits": data}
        return data

    @model_validator(mode="after")
    def _requests_within_limits(self) -> Self:
        if self.requests is None or self.limits is None:
            return self
        for kind, parse in (("cpus", parse_cpus), ("memory", parse_memory)):
            request, limit = getattr(self.requests, kind), getattr(self.limits, kind)
            if request is not None and limit is not None and parse(request) > parse(limit):
                raise ValueError(f"requests.{kind} is more than limits.{kind}: nobody could use what is reserved")
        return self
