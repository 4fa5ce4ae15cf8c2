"""From a secret reference to its value: allowed first, looked up second. The only way to a secret's value."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hatchway.config.schema import FileContext, SecretsConfig
from hatchway.errors import SecretError
from hatchway.secrets.policy import Context, Purpose, permitted
from hatchway.secrets.providers import NotServedError, read_file, read_variable
from hatchway.secrets.secret import Secret

__all__ = ["Purpose", "Secret", "SecretResolver"]


class SecretResolver:
    """Resolves references by the contexts of one configuration, in this worker's files and environment.

    Keeps nothing: a rotated secret is in force at the next call.
    """

    def __init__(self, config: SecretsConfig, environ: Mapping[str, str]) -> None:
        self._contexts = config.contexts
        self._environ = environ

    async def resolve(self, ref: str, *, field: str, purpose: Purpose) -> Secret:
        """The value of `<context>:<secret-name>`. `field` is the requester's name of where the reference stands.

        Raises SecretError (no such context or secret, or it cannot be read) or SecretNotAllowed (it exists, and is not
        for this purpose). Both name the field and the reference, never a value.
        """
        context, name = permitted(self._contexts, ref, field=field, purpose=purpose)
        try:
            # A file can lie on a network mount, so it is not read in the loop.
            value = await asyncio.to_thread(self._read, context, name)
        except NotServedError as e:
            raise SecretError(f"{field}: the secret {ref!r} {e}") from None
        return Secret(value)

    def _read(self, context: Context, name: str) -> str:
        if isinstance(context, FileContext):
            return read_file(context.path, name)
        return read_variable(self._environ, name)
