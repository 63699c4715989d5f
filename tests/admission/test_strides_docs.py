"""The page of the address audit says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from site_graphs import Knobs, make_decoder

from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.admission.strides.docs import address_audit
from qbpass.admission.strides.findings import CODES, Place

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_current() -> None:
    assert (ROOT / "docs" / "address-audit.md").read_text(encoding="utf-8") == address_audit()


def test_every_code_is_given_out_somewhere_and_no_other() -> None:
    folders = (ROOT / "admission" / "strides", ROOT / "rewrites")
    source = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    body = source.replace((ROOT / "admission" / "strides" / "findings.py").read_text().partition("}\n")[0], "")
    assert set(CODES) <= set(re.findall(r'"([A-Z]+(?:_[A-Z]+)*)"', body))


def test_a_problem_must_have_a_known_code() -> None:
    site = admit(make_decoder(Knobs())).sites[0].site
    assert site is not None
    with pytest.raises(KeyError, match="NO_SUCH is no audit code"):
        Place(site, Call(1, 2), "active").problem("NO_SUCH", "")
