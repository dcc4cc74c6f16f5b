"""How a command has ended, as a ``metav1.Status``: what exec and attach send in the end.

The words and reasons are those of k8s.io/kubelet pkg/cri/streaming/remotecommand (exec.go,
attach.go) and of ``NewInternalError`` in k8s.io/apimachinery pkg/api/errors.
"""

from __future__ import annotations

from typing import Any


def success() -> dict[str, Any]:
    """Return the status that all is well."""
    return {"metadata": {}, "status": "Success"}


def exit_code(code: int) -> dict[str, Any]:
    """Return the status that a command has ended with ``code``."""
    if code == 0:
        return success()
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def internal_error(text: str) -> dict[str, Any]:
    """Return the status that something could not be done."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {text}",
        "reason": "InternalError",
        "details": {"causes": [{"message": text}]},
        "code": 500,
    }
