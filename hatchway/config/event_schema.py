"""The keys of a scaler of the type `event`: where its events go, and what each target needs beside its address."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from hatchway.model import SecretRef, Text


class ProvisioningTarget(BaseModel):
    """One receiver of a scaler's events. A string in its place is its `scaleUp`, and nothing else."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True,
        hide_input_in_errors=True, serialize_by_alias=True,
    )  # fmt: skip

    scale_up: Annotated[str, Field(max_length=2048)]
    """Where scale-up events go: `temporal:`, `https:`, `sqs:`, `sns:` or `eventbridge:`, see docs/events.md."""
    scale_down: Annotated[str, Field(max_length=2048)] | None = None
    """Where scale-down events go, in the same manner. Unset: where scale-up events go."""
    claim_key: Annotated[str, Field(max_length=100)] | None = None
    """The receiver's X25519 public key, base64: claim codes are sealed to it. Required for `temporal:`."""
    # https
    signing_secret: SecretRef | None = None
    """The key that signs each request, at least 16 bytes. Its context lists this host in `targets`. Required."""
    allow_addresses: Annotated[list[str], Field(max_length=50)] = []
    """Networks that may be connected to though they are private or loopback."""
    ca_file: Text | None = None
    """PEM file on each worker with the authorities to trust instead of the system's; for `temporal:` with `tls` too."""
    # temporal
    address: Text | None = None
    """HOST:PORT of the Temporal server. Unset: Hatchway's own server, in the target's namespace."""
    tls: bool | None = None
    """Unset: with an `apiKeySecret`, yes; else no."""
    api_key_secret: SecretRef | None = None
    """The API key of that server. Its context lists the server's host in `targets`."""
    # sqs, sns, eventbridge
    region: Text | None = None
    """Where the target itself does not say. Unset: the worker's own, as the AWS SDK finds it."""
    endpoint_url: Text | None = None
    """Instead of AWS's own endpoint: a VPC endpoint, or a stand-in."""

    @property
    def down(self) -> str:
        return self.scale_down or self.scale_up

    @property
    def host(self) -> str:
        """The host of `address`; empty without one."""
        return (self.address or "").rpartition(":")[0].strip("[]")

    def to_row(self) -> str:
        """As it is copied onto the rows of agents, which are torn down by it whatever the configuration says then."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_row(cls, text: str) -> ProvisioningTarget:
        """Also a bare target, as rows that were moved over from KiCI have it."""
        return cls.model_validate_json(text) if text.startswith("{") else cls(scale_up=text)


def _target_of_string(value: Any) -> Any:
    return {"scaleUp": value} if isinstance(value, str) else value


Targets = Annotated[list[Annotated[ProvisioningTarget, BeforeValidator(_target_of_string)]], Field(max_length=10)]
