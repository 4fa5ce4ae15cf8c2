"""Checks the job's registry credentials before a machine is paid for. Material never leaves the worker."""

from __future__ import annotations

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.models import AuthAnswer, AuthInput
from hatchway.config.current import CurrentConfig
from hatchway.errors import AuthError, AuthUnavailable, ErrorType, SecretError, SecretUnavailable
from hatchway.registry.auth import check_container_auth


class AuthActivities:
    def __init__(self, config: CurrentConfig) -> None:
        self._config = config

    @activity.defn
    async def resolve_container_auth(self, ask: AuthInput) -> AuthAnswer:
        """Resolve what the job refers to, and answer which references served: `spawn` asks the same resolver again.

        Raises SecretUnavailable, to be tried again, where the secrets lie does not answer: that refuses no job.
        """
        _, config = await self._config.current()
        try:
            checked = await check_container_auth(ask.container, self._config.resolver(config))
        except (AuthUnavailable, SecretUnavailable) as e:
            raise ApplicationError(str(e), type=ErrorType.SECRET_UNAVAILABLE) from None
        except (AuthError, SecretError) as e:
            return AuthAnswer(refused=str(e))
        if checked is None:
            return AuthAnswer()
        return AuthAnswer(
            image=checked.image, registry=checked.registry, references=sorted(checked.references.values())
        )
