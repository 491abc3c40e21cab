"""The API as a document that programs read: OpenAPI 3.1, its schemas from the types themselves.

`/v1/stream` stands in no such document: its answer has no end.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from dovetail.serve.store import STATES
from dovetail.serve.submission import MOST_WORDS, MOST_WORKERS, NAME, Submission
from dovetail.version import __version__

LIMITS: dict[str, dict[str, Any]] = {
    "name": {"pattern": f"^{NAME.pattern}$"},
    "command": {"type": ["array", "null"], "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_WORDS},
    "folder": {"pattern": "^/"},
    "priority": {"exclusiveMinimum": 0},
    "min_workers": {"minimum": 1, "maximum": MOST_WORKERS},
}
"""What the types themselves do not say; what a run file holds, and what there is in a cluster, is checked beyond it."""
LINKS = {
    name: {"operationId": name, "parameters": {"job": "$response.body#/id"}}
    for name in ("show_a_job", "cancel_a_job", "hold_a_job_to_a_size", "read_its_log", "what_happened_to_it")
}
"""What can be asked next about a job that was submitted."""
ERRORS = {"401": "no token", "404": "no such job", "409": "not now", "413": "too large", "422": "not understood"}


@functools.cache
def document() -> dict[str, Any]:
    """Return the document."""
    _, schemas = msgspec.json.schema_components([Submission], ref_template="#/components/schemas/{name}")
    job = [{"name": "job", "in": "path", "required": True, "schema": {"type": "string"}}]
    resize = {
        "type": "object",
        "properties": {"workers": {"type": ["integer", "null"], "minimum": 1}},
        "additionalProperties": False,
    }
    drain = {
        "type": "object",
        "properties": {"state": {"enum": ["on", "now", "off"]}},
        "additionalProperties": False,
    }
    state = {"name": "state", "in": "query", "schema": {"enum": list(STATES)}}
    schemas["Submission"]["properties"] = {
        name: {**schema, **LIMITS.get(name, {})} for name, schema in schemas["Submission"]["properties"].items()
    }
    schemas["Submission"]["oneOf"] = [{"required": ["run"]}, {"required": ["command"]}]
    paths = {
        "/v1/jobs": {
            "get": _operation("List jobs", [state, _whole("last")]),
            "post": _operation("Submit a job", body={"$ref": "#/components/schemas/Submission"}, links=LINKS),
        },
        "/v1/jobs/{job}": {"get": _operation("Show a job", job)},
        "/v1/jobs/{job}/cancel": {"post": _operation("Cancel a job", job)},
        "/v1/jobs/{job}/resize": {"post": _operation("Hold a job to a size", job, body=resize)},
        "/v1/jobs/{job}/log": {"get": _operation("Read its log", [*job, _whole("offset")])},
        "/v1/jobs/{job}/events": {"get": _operation("What happened to it", [*job, _whole("after")])},
        "/v1/events": {"get": _operation("What happened", [_whole("after")])},
        "/v1/decision": {"get": _operation("What was decided last, and what the policy was told")},
        "/v1/cluster": {"get": _operation("What there is, and who holds it")},
        "/v1/drain": {"post": _operation("Start nothing more", body=drain)},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dovetail", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _whole(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0}}


def _operation(
    summary: str,
    parameters: list[dict[str, Any]] | None = None,
    *,
    body: dict[str, Any] | None = None,
    links: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one thing that can be asked."""
    found: dict[str, Any] = {
        "summary": summary,
        "operationId": re.sub(r"[^a-z]+", "_", summary.lower()),
        "responses": {
            "200": {
                "description": "an object",
                "content": {"application/json": {"schema": {"type": "object"}}},
                **({"links": links} if links else {}),
            },
            **{status: {"description": text} for status, text in ERRORS.items()},
        },
    }
    if parameters:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return found
