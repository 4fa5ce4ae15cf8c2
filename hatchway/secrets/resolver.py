"""From a secret reference to its value: allowed first, looked up second. The only way to a secret's value."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hatchway.config.schema import EnvContext, FileContext, SecretsConfig, SecretsManagerContext
from hatchway.errors import SecretError, SecretUnavailable
from hatchway.secrets.policy import Context, Purpose, permitted
from hatchway.secrets.providers import NotServedError, UnavailableError, read_file, read_variable
from hatchway.secrets.secret import Secret

if TYPE_CHECKING:
    from hatchway.aws import AwsClients

__all__ = ["AwsOnce", "Purpose", "Secret", "SecretResolver"]


class AwsOnce:
    """One worker's AWS clients, made with the first reference that needs them: the SDK costs a third of a second to
    import, which only those pay who have a secret there. Shared by all resolvers, as is the identity that it fetches.
    """

    def __init__(self) -> None:
        self._clients: AwsClients | None = None

    def get(self) -> AwsClients:
        from hatchway.aws import AwsClients

        self._clients = self._clients or AwsClients()
        return self._clients


class SecretResolver:
    """Resolves references by the contexts of one configuration, in this worker's files and environment.

    Keeps nothing: a rotated secret is in force at the next call.
    """

    def __init__(self, config: SecretsConfig, environ: Mapping[str, str], aws: AwsOnce | None = None) -> None:
        self._contexts = config.contexts
        self._environ = environ
        self._aws = aws or AwsOnce()

    async def resolve(self, ref: str, *, field: str, purpose: Purpose) -> Secret:
        """The value of `<context>:<secret-name>`. `field` is the requester's name of where the reference stands.

        Raises SecretError (no such context or secret, or it cannot be read), SecretUnavailable (where it lies does not
        answer now) or SecretNotAllowed (it is not for this purpose). All name the field and the reference, never a
        value.
        """
        context, name = permitted(self._contexts, ref, field=field, purpose=purpose)
        try:
            value = await self._read(context, name)
        except UnavailableError as e:
            raise SecretUnavailable(f"{field}: the secret {ref!r} {e}") from None
        except NotServedError as e:
            raise SecretError(f"{field}: the secret {ref!r} {e}") from None
        return Secret(value)

    async def _read(self, context: Context, name: str) -> str:
        if isinstance(context, FileContext):
            return await asyncio.to_thread(read_file, context.path, name)  # it can lie on a network mount
        if isinstance(context, EnvContext):
            return read_variable(self._environ, name)
        clients = self._aws.get()
        from hatchway.aws import in_aws_thread
        from hatchway.secrets.aws import read_parameter, read_secret

        if isinstance(context, SecretsManagerContext):
            return await in_aws_thread(read_secret, clients, context, name)
        return await in_aws_thread(read_parameter, clients, context, name)
