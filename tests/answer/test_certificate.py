"""Success is earned: no certificate says it beside a number above its limit."""

import copy
import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widefield.answer.certificate import Certificate, Check, Status, derive_status

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
LIMITS = st.floats(allow_nan=False, allow_infinity=False)
FAILURES = [status for status in Status if status is not Status.success]
CHECKS = st.builds(Check, NUMBERS, LIMITS, st.sampled_from(FAILURES))
MET = Check(1e-12, 1e-10)


@given(st.dictionaries(st.sampled_from(["residual", "error", "lost", "other"]), CHECKS, min_size=1))
def test_success_means_that_every_number_is_within_its_limit(checks):
    certificate = Certificate("demo", checks)
    assert (certificate.status is Status.success) == all(c.value <= c.limit for c in checks.values())
    if certificate.status is not Status.success:
        assert certificate.status in {c.otherwise for c in checks.values() if not c.value <= c.limit}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_the_solver_saw_fail_is_the_status(failure):
    assert Certificate("demo", {"residual": MET}, failure).status is failure
    assert Certificate("demo", {}, failure).status is failure
    assert derive_status({"residual": Check(1.0, 0.1)}, failure) is failure


def test_success_has_no_back_door():
    """It is no argument and no default, cannot be put in by `replace`, and nothing measured is nothing earned."""
    assert "status" not in {field.name for field in fields(Certificate)}
    for make in (
        lambda: Certificate("demo", {}),
        lambda: Certificate("demo", {"residual": MET}, Status.success),
        lambda: Certificate("demo", {"residual": Check(1.0, math.inf)}),
        lambda: Certificate("demo", {"residual": Check(1.0, math.nan)}),
        lambda: Certificate("demo", {"residual": Check(1.0, 0.1, Status.success)}),
    ):
        with pytest.raises(ValueError, match="success|finite"):
            make()
    with pytest.raises(TypeError):
        replace(Certificate("demo", {"residual": Check(1.0, 0.1)}), status=Status.success)


def test_not_a_number_is_never_within_a_limit():
    assert Certificate("demo", {"residual": Check(math.nan, 1.0)}).status is Status.inaccurate


def test_residual_and_error_are_read_from_the_checks():
    certificate = Certificate("demo", {"residual": MET, "error": Check(np.float64(2e-3), 1e-2)})
    assert (certificate.residual, certificate.tolerance, certificate.error) == (1e-12, 1e-10, 2e-3)
    alone = Certificate("demo", {"lost": Check(0, 0, Status.incomplete)})
    assert (alone.residual, alone.tolerance, alone.error) == (None, None, None)


def test_certificates_print_what_was_measured_beside_what_was_asked():
    text = str(Certificate("demo", {"residual": MET, "error": Check(0.02, 0.01)}, options={"rtol": 0.01}))
    assert "demo: inaccurate" in text and Status.inaccurate.value in text
    assert "residual 1.0e-12, within 1.0e-10" in text and "error 2.0e-02, ABOVE 1.0e-02" in text


def test_checks_cannot_be_taken_away():
    certificate = Certificate("demo", {"residual": Check(1.0, 0.1)})
    with pytest.raises(AttributeError):
        certificate.checks.clear()
    with pytest.raises(TypeError):
        certificate.checks["residual"] = MET
    for clone in (copy.copy(certificate), copy.deepcopy(certificate), pickle.loads(pickle.dumps(certificate))):
        assert clone == certificate and clone.status is Status.inaccurate
        with pytest.raises(TypeError):
            clone.checks["residual"] = MET
