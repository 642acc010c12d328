"""Checks requests that the sandbox received from the provider's client against ``openapi.yaml``."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from openapi_core import OpenAPI
from openapi_core.datatypes import RequestParameters
from openapi_core.exceptions import OpenAPIError
from werkzeug.datastructures import Headers, ImmutableMultiDict

import airflow_provider_webcollect.sandbox

CLIENT = "airflow-provider-webcollect/"
SPEC_FILE = Path(airflow_provider_webcollect.sandbox.__file__).with_name("openapi.yaml")


class RequestContract:
    """The contract, read once, for checking many request logs."""

    def __init__(self) -> None:
        spec = yaml.safe_load(SPEC_FILE.read_text())
        self._openapi = OpenAPI.from_dict(spec)
        self._operations = {
            (path, method): operation
            for path, item in spec["paths"].items()
            for method, operation in item.items()
            if method in ("get", "post")
        }
        self._parameters = spec["components"]["parameters"]
        #: The operations of valid requests, so that a request that is sent again is not validated again.
        self._right: dict[str, str] = {}

    def check(self, logged: Iterable[Mapping[str, Any]]) -> Counter[str]:
        """
        Validate the client's requests; those of other user agents are passed over.

        Of a request too long for the log, only the path, the query's names and the credential are checked.

        :param logged: entries of ``Control.requests()``.
        :return: number of requests of each operation, by operationId.
        :raises AssertionError: if a request breaks the contract; the message names it and says how.
        """
        return Counter(
            self._checked(entry)
            for entry in logged
            if entry["headers"].get("user-agent", "").startswith(CLIENT)
        )

    def _checked(self, entry: Mapping[str, Any]) -> str:
        about = ("method", "path", "endpoint", "query", "credential", "body", "body_cut")
        headers = {name: value for name, value in entry["headers"].items() if name != "host"}
        key = repr([headers, *(entry[name] for name in about)])
        if key not in self._right:
            self._right[key] = self._check(LoggedRequest(entry))
        return self._right[key]

    def _check(self, request: LoggedRequest) -> str:
        try:
            if request.is_complete:
                self._openapi.validate_request(request)
        except OpenAPIError as error:
            raise AssertionError(f"{request.method.upper()} {request.path}: {_chain(error)}") from error
        operation = self._operations.get((request.endpoint, request.method))
        assert operation, f"{request.method.upper()} {request.path}: not a path and method of the contract"
        problem = self._beyond_openapi(request, operation)
        assert not problem, f"{request.method.upper()} {request.path}: {problem}"
        return str(operation["operationId"])

    def _beyond_openapi(self, request: LoggedRequest, operation: Mapping[str, Any]) -> str | None:
        """Return what breaks the contract though OpenAPI allows it or cannot express it; None if nothing."""
        unknown = set(request.parameters.query) - set(self._query_names(operation))
        if unknown:
            return f"unknown query parameter: {', '.join(sorted(unknown))}"
        if request.body and "requestBody" not in operation:
            return "a body, where none is taken"
        if request.credential == "bearer+api_key":
            return "both credentials at once"
        if operation.get("security") == [] and request.credential != "none":
            return "a credential in the headers, where none is taken"
        return None

    def _query_names(self, operation: Mapping[str, Any]) -> Iterator[str]:
        for parameter in operation.get("parameters", ()):
            reference = parameter.get("$ref", "").rpartition("/")[2]
            yield self._parameters[reference]["name"] if reference else parameter["name"]


class LoggedRequest:
    """A log entry in the form that openapi-core takes."""

    host_url = "http://sandbox"

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = entry
        self.method: str = entry["method"].lower()
        # in OpenAPI, a path parameter cannot have a slash, but `namespace/app_name` is one parameter
        self.path: str = re.sub(r"(/data-apps/[^/]+)/([^/]+/deprecate)$", r"\1%2F\2", entry["path"])
        self.endpoint: str = entry["endpoint"]
        self.credential: str = entry["credential"]
        self.is_complete: bool = not entry["body_cut"]
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(entry["query"]), header=Headers(entry["headers"])
        )
        self.content_type: str = entry["headers"].get("content-type", "")

    @cached_property
    def body(self) -> bytes | None:
        text = self._entry["body"]
        body = base64.b64decode(text) if self._entry["body_encoding"] == "base64" else text.encode()
        return body or None


def _chain(error: BaseException | None) -> str:
    """Return the messages of an error and of its causes, in one line."""
    parts: list[str] = []
    while error is not None:
        parts.append(str(error))
        error = error.__cause__
    return " <- ".join(parts)
