"""Secrets that lie in AWS: in Secrets Manager, whole or one key of a JSON object, and in SSM's Parameter Store.

A name is a name, in the context's own region and account: an ARN, which could point into any, is refused. So is what
SSM hands on from elsewhere (`/aws/…`), and a version of a parameter: a reference follows the rotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hatchway.aws import AwsClients, AwsDenied, AwsError, AwsUnavailable, aws_errors
from hatchway.config.schema import SecretsManagerContext, SsmContext
from hatchway.foreign_json import parse_foreign
from hatchway.secrets.providers import MAX_SECRET_BYTES, NotServedError, UnavailableError

_SECRET_NAME = re.compile(r"[A-Za-z0-9/_+=.@-]{1,512}")  # Secrets Manager's own alphabet, which has no `#` and no `:`
_PARAMETER_NAME = re.compile(r"/?[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")


def split_key(name: str) -> tuple[str, str | None]:
    """`ci/registry#token` as the secret's name and the key of its JSON object; without a `#` there is no key."""
    secret, hash_, key = name.partition("#")
    return secret, key if hash_ else None


def read_secret(clients: AwsClients, context: SecretsManagerContext, name: str) -> str:
    """The current version of a secret, or of one key of it. Blocks. Raises NotServedError, UnavailableError."""
    secret, key = split_key(name)
    if not _SECRET_NAME.fullmatch(secret):
        raise NotServedError(
            "has a name that no secret has: letters, digits and /_+=.@- only; an ARN does not serve, the region and "
            "the account are the context's"
        )
    if key == "":
        raise NotServedError("names no key after its #")
    with _answers("GetSecretValue", absent="ResourceNotFoundException", where="Secrets Manager"):
        client = clients.secrets_manager(context.region, context.endpoint_url)
        answer = client.get_secret_value(SecretId=secret)
        text = None if "SecretBinary" in answer else _text(answer["SecretString"])
    if text is None:
        raise NotServedError("is binary; store it as text")
    return _checked(text if key is None else _value_of(text, key))


def read_parameter(clients: AwsClients, context: SsmContext, name: str) -> str:
    """The value of a parameter, decrypted. Blocks. Raises NotServedError, UnavailableError."""
    if not _PARAMETER_NAME.fullmatch(name) or len(name) > 1011:
        raise NotServedError(
            "has a name that no parameter has: letters, digits, _.- and / between its parts; versions and ARNs do not "
            "serve, a reference follows the rotation"
        )
    if name.lstrip("/").lower().split("/")[0] in ("aws", "ssm"):
        raise NotServedError("has a name of AWS's own, which leads elsewhere; name a parameter of yours")
    with _answers("GetParameter", absent="ParameterNotFound", where="the Parameter Store"):
        client = clients.ssm(context.region, context.endpoint_url)
        parameter = client.get_parameter(Name=name, WithDecryption=True)["Parameter"]
        kind, value = parameter.get("Type"), _text(parameter["Value"])
    if kind == "StringList":
        raise NotServedError("is a list; store it as a SecureString")
    return _checked(value)


@contextmanager
def _answers(action: str, *, absent: str, where: str) -> Iterator[None]:
    try:
        with aws_errors():
            yield
    except AwsUnavailable as e:
        raise UnavailableError(f"cannot be read now: {e}") from None
    except AwsDenied as e:
        raise NotServedError(f"cannot be read: {e}; it needs {action}, and kms:Decrypt for a key of yours") from None
    except AwsError as e:
        if e.code == absent:
            raise NotServedError(f"does not exist in {where} of that region and account") from None
        raise NotServedError(f"cannot be read: {e}") from None


def _text(value: object) -> str:
    """The SDK hands on whatever stood in the answer, and an answer may be another server's."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _value_of(text: str, key: str) -> str:
    try:
        whole = parse_foreign(text)
    except ValueError:
        # Not `from e`: the error of the parser holds the text.
        raise NotServedError("is not JSON, so it has no keys; leave out the # and what follows it") from None
    if not isinstance(whole, dict):
        raise NotServedError("is not a JSON object, so it has no keys; leave out the # and what follows it")
    if key not in whole:
        raise NotServedError("has no such key")
    if not isinstance(whole[key], str):
        raise NotServedError("has something else than a string under this key")
    return str(whole[key])


def _checked(value: str) -> str:
    if not value:
        raise NotServedError("is empty")
    if "\0" in value:
        raise NotServedError("holds a NUL byte, which no environment or header can carry")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise NotServedError("holds half of a surrogate pair, which no environment or header can carry")
    if len(value.encode()) > MAX_SECRET_BYTES:
        raise NotServedError(f"is larger than {MAX_SECRET_BYTES // 1024} KiB")
    return value
