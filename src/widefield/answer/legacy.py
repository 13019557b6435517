"""Temporary: certificates from statuses written by hand. Goes away with its last caller."""

from typing import Any

from widefield.answer.certificate import Certificate, Check, Status


def certificate(
    theory: str, status: Status = Status.success, residual=None, tolerance=None, error=None, **rest: Any
) -> Certificate:
    """A certificate from the old arguments."""
    checks = {}
    if residual is not None:
        checks["residual"] = Check(residual, 1e300 if tolerance is None else tolerance)
    if error is not None:
        checks["error"] = Check(error, 1e300)
    if not checks:
        checks["unjudged"] = Check(0.0, 0.0)
    return Certificate(theory, checks, None if status is Status.success else status, **rest)
